import queue
import resource
import threading

import pyarrow.parquet as pq
import pytest

from searchlight.search.formatting import format_command
from searchlight.search.reporting import parquet
from searchlight.search.reporting.parquet import ParquetCallback
from searchlight.search.study.trial import get_outcome
from tests.search.trial_states import TrialStates

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
    monkeypatch.setattr(parquet, "EVERY_S", 0.02)
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
    monkeypatch.setattr(parquet, "EVERY_S", 3600.0)
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
    monkeypatch.setattr(parquet, "EVERY_S", 3600.0)
    searched.path.mkdir()
    with searched.exporter:
        searched.run_trial()
    (line,) = searched.said
    assert line.endswith(f"{format_command('report')} {tmp_path.name} --storage {tmp_path.parent} writes it again")
