import math
import queue
import resource
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import create_trial

from searchlight.search.formatting import format_command
from searchlight.search.reporting import parquet
from searchlight.search.reporting.parquet import ParquetCallback, write_parquet
from searchlight.search.study.trial import get_outcome
from tests.search.trial_states import TrialStates


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


def test_smaller_micro_batches_have_a_column(write):
    table = write(trial_of(0), trial_of(1, micro_batches={"batch_size": 8, "accumulation": 4}))
    assert table["micro_batches"].to_pylist() == [None, "batch_size=8, accumulation=4"]


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


LIMIT_S = 20.0


class Searched:
    """A search that goes as the test says, and the exporter that observes it."""

    def __init__(self, folder):
        self.path = folder / "trials.parquet"
        self.said, self.tried = [], queue.SimpleQueue()
        self.exporter = ParquetCallback(folder, self.said.append)
        self.trials = TrialStates(self.exporter)

    def run_trial(self):
        number = len(self.trials.attributes)
        self.trials.start(number, {"lr": 0.5})
        for epoch in range(1, 4):
            self.trials.report(number, epoch, {"val/loss": 1 / epoch})
        self.trials.end(number, "completed")

    def rows(self):
        with open(self.path, "rb") as file:  # by its path, pyarrow opens it twice: it may be another one by then
            table = pq.read_table(file)
        return [(row["trial_id"], row["epoch"], row["outcome"]) for row in table.to_pylist()]

    def wait_for(self, rows):
        while not (self.path.exists() and len(self.rows()) == rows):
            self.tried.get(timeout=LIMIT_S)


@pytest.fixture
def searched(tmp_path, monkeypatch):
    monkeypatch.setattr(ParquetCallback, "every_s", 0.02)
    searched, write = Searched(tmp_path), parquet.write_parquet

    def write_and_tell(trials, path):
        try:
            write(trials, path)
        finally:
            searched.tried.put(len(trials))

    monkeypatch.setattr(parquet, "write_parquet", write_and_tell)
    return searched


def test_file_follows_the_search_and_is_always_readable(searched):
    lengths, errors, over = [], [], threading.Event()

    def read():
        while not over.is_set():
            if searched.path.exists():
                try:
                    lengths.append(len(searched.rows()))
                except Exception as error:  # in a thread of its own, it would fail no test
                    errors.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with searched.exporter:
            for trials in range(1, 5):
                searched.run_trial()
                searched.wait_for(3 * trials)
    finally:
        over.set()
        reader.join(LIMIT_S)
    assert errors == []
    assert lengths == sorted(lengths)
    assert searched.said == []


def test_file_has_everything_at_the_end(searched, monkeypatch, tmp_path):
    monkeypatch.setattr(ParquetCallback, "every_s", 3600.0)
    with searched.exporter:
        searched.run_trial()
        assert not searched.path.exists()
    whole = [(0, 1, "completed"), (0, 2, "completed"), (0, 3, "completed")]
    assert searched.rows() == whole
    searched.path.unlink()
    with ParquetCallback(tmp_path, searched.said.append, earlier=searched.trials.get_all()):
        pass  # a resumed search that has nothing more to do
    assert searched.rows() == whole


def test_change_is_stored_before_the_thread_hears_of_it(searched, monkeypatch):
    stored, exporter = [], searched.exporter
    monkeypatch.setattr(exporter._changed, "set", lambda: stored.append(get_outcome(exporter._trials[0])))
    searched.run_trial()
    assert stored[-1] == "completed"


def test_full_disk_is_told_once_and_keeps_the_last_file(searched):
    searched.run_trial()
    with searched.exporter:
        searched.wait_for(3)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            searched.trials.tell(0)
            for _ in range(4):  # one may have begun before
                searched.tried.get(timeout=LIMIT_S)
            assert len(searched.rows()) == 3
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        (line,) = searched.said
        assert line.startswith(f"{searched.path} cannot be written: ")
        assert line.endswith("the search continues")
        searched.run_trial()
        searched.wait_for(6)
        assert len(searched.said) == 1


def test_failure_at_the_end_is_told_with_a_command(searched, tmp_path, monkeypatch):
    monkeypatch.setattr(ParquetCallback, "every_s", 3600.0)
    searched.path.mkdir()
    with searched.exporter:
        searched.run_trial()
    (line,) = searched.said
    assert line.endswith(f"{format_command('report')} {tmp_path.name} --storage {tmp_path.parent} writes it again")
