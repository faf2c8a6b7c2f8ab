import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import create_trial

from search.reporting.parquet import write_parquet


def trial_of(number, searched=(), **attributes):
    """A trial that ended; `searched` has value and distribution by name."""
    searched = dict(searched)
    trial = create_trial(
        value=0.0,
        params={name: value for name, (value, _) in searched.items()},
        distributions={name: distribution for name, (_, distribution) in searched.items()},
        user_attrs={"config": {name: value for name, (value, _) in searched.items()}, **attributes},
    )
    trial.number = number
    return trial


def test_parquet_has_a_row_per_report_and_one_for_a_trial_without_any(trials, tmp_path):
    write_parquet(trials, tmp_path / "trials.parquet")
    rows = pq.read_table(tmp_path / "trials.parquet").to_pylist()
    assert [(row["trial_id"], row["epoch"]) for row in rows] == [
        (0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (2, 1), (3, None), (4, 1),
    ]  # fmt: skip
    assert [row["outcome"] for row in rows if row["trial_id"] in (2, 3, 4)] == ["diverged", "failed", "interrupted"]
    assert math.isnan(rows[6]["train/loss"])
    assert [row["divergence"] for row in rows if row["divergence"]] == ["skips"]
    assert rows[7]["val/score"] is None
    assert rows[7]["reason"] == "because"
    assert rows[0]["config/inner.kind"] == "a"
    assert isinstance(rows[0]["count"], int)


def test_parquet_has_what_a_trial_took_until_each_report(tmp_path):
    report = {"metrics": {"val/score": 0.1, "samples": 7.0}, "samples": 100.0, "gpu_seconds": 0.5}  # one of its own
    write_parquet([trial_of(0, **{"report/1": report, "report/2": report})], tmp_path / "trials.parquet")
    rows = pq.read_table(tmp_path / "trials.parquet").to_pylist()
    assert [(row["samples"], row["gpu_seconds"], row["reported/samples"]) for row in rows] == [
        (100.0, 0.5, 7.0),
        (200.0, 1.0, 7.0),
    ]


def test_the_columns_of_ours_have_their_types_from_the_first_trial_on(tmp_path):
    path = tmp_path / "trials.parquet"
    write_parquet([trial_of(0)], path)
    early = pq.read_schema(path)
    report = {"metrics": {"val/loss": 0.5}, "samples": 10.0, "gpu_seconds": 0.5}
    write_parquet([trial_of(0), trial_of(1, copied_from=0, **{"report/1": report})], path)
    late = pq.read_schema(path)
    assert early.names == late.names[: len(early.names)]
    assert early.types == late.types[: len(early.types)]
    assert (late.field("epoch").type, late.field("samples").type) == (pa.int64(), pa.float64())


@pytest.mark.parametrize(
    ("distribution", "value", "kind"),
    [
        (FloatDistribution(0.0, 1.0), 0.5, pa.float64()),
        (IntDistribution(1, 9), 3, pa.int64()),
        (CategoricalDistribution([None, 0.5]), None, pa.float64()),
        (CategoricalDistribution([1, 0.5]), 1, pa.float64()),
        (CategoricalDistribution([1, "all"]), 1, pa.string()),
        (CategoricalDistribution([None, True]), None, pa.bool_()),
        (CategoricalDistribution(["a", None]), "a", pa.string()),
    ],
)
def test_a_parameter_has_the_type_of_all_that_may_be_tried(distribution, value, kind, tmp_path):
    write_parquet([trial_of(0, {"x": (value, distribution)})], tmp_path / "trials.parquet")
    column = pq.read_table(tmp_path / "trials.parquet")["config/x"]
    assert column.type == kind
    assert column.to_pylist() == [str(value) if kind == pa.string() else value]


@pytest.mark.parametrize("value", [[1, "flip"], 2**64])
def test_a_constant_that_parquet_has_no_type_for_is_text(value, tmp_path):
    write_parquet([trial_of(0, config={"x": value}), trial_of(1, config={"x": value})], tmp_path / "trials.parquet")
    assert pq.read_table(tmp_path / "trials.parquet")["config/x"].to_pylist() == [str(value)] * 2


def test_a_metric_that_not_every_report_has_is_empty_in_the_others(tmp_path):
    reports = {f"report/{epoch}": {"metrics": metrics} for epoch, metrics in [(1, {"a": 1.0}), (2, {"b": 2.0})]}
    write_parquet([trial_of(0), trial_of(1, **reports), trial_of(2)], tmp_path / "trials.parquet")
    rows = pq.read_table(tmp_path / "trials.parquet").to_pylist()
    assert [(row["trial_id"], row["epoch"], row["a"], row["b"]) for row in rows] == [
        (0, None, None, None),
        (1, 1, 1.0, None),
        (1, 2, None, 2.0),
        (2, None, None, None),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["trials.parquet"]
