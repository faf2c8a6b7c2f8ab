import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import create_trial

from searchlight.search.reporting.parquet import write_parquet


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


@pytest.fixture
def write(tmp_path):
    """Writes trials, and returns the table that can be read then."""

    def write_trials(*trials):
        write_parquet(trials, tmp_path / "trials.parquet")
        return pq.read_table(tmp_path / "trials.parquet")

    return write_trials


def test_file_has_a_row_per_report_or_per_trial_without_any(trials, write):
    rows = write(*trials).to_pylist()
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


def test_costs_add_up_and_missing_metrics_are_empty(write, tmp_path):
    own = {"metrics": {"val/score": 0.1, "samples": 7.0}, "samples": 100.0, "gpu_seconds": 0.5}
    other = {"metrics": {"b": 2.0}, "samples": 100.0, "gpu_seconds": 0.5}
    rows = write(trial_of(0), trial_of(1, **{"report/1": own, "report/2": other}), trial_of(2)).to_pylist()
    names = ("trial_id", "epoch", "samples", "gpu_seconds", "reported/samples", "val/score", "b")
    assert [tuple(row[name] for name in names) for row in rows] == [
        (0, None, None, None, None, None, None),
        (1, 1, 100.0, 0.5, 7.0, 0.1, None),
        (1, 2, 200.0, 1.0, None, None, 2.0),
        (2, None, None, None, None, None, None),
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["trials.parquet"]


def test_columns_keep_their_types_from_the_first_trial_on(write):
    early = write(trial_of(0)).schema
    report = {"metrics": {"val/loss": 0.5}, "samples": 10.0, "gpu_seconds": 0.5}
    late = write(trial_of(0), trial_of(1, copied_from=0, **{"report/1": report})).schema
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
def test_parameter_has_the_type_of_all_its_values(distribution, value, kind, write):
    column = write(trial_of(0, {"x": (value, distribution)}))["config/x"]
    assert column.type == kind
    assert column.to_pylist() == [str(value) if kind == pa.string() else value]


@pytest.mark.parametrize("value", [[1, "flip"], 2**64])
def test_constant_without_a_parquet_type_is_text(value, write):
    table = write(trial_of(0, config={"x": value}), trial_of(1, config={"x": value}))
    assert table["config/x"].to_pylist() == [str(value)] * 2
