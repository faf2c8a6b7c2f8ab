import resource
import threading
import time

import pyarrow.parquet as pq
import pytest
from optuna.samplers import RandomSampler

from search.config.search_space import resolve_space
from search.reporting import parquet_callback
from search.reporting.parquet_callback import ParquetCallback
from search.study.study import create_study
from tests.search.objectives import VAL_LOSS
from trainables.task import TaskConfig, searchable

LIMIT_S = 20.0


class Config(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)


class Searched:
    """A search that goes as the test says, and the exporter that observes it."""

    def __init__(self, folder):
        self.path = folder / "trials.parquet"
        self.said = []
        self.study, self.store = create_study(folder, lambda number: RandomSampler(seed=number), [VAL_LOSS])
        self.exporter = ParquetCallback(self.study, folder, self.said.append)

    def run_trial(self, epochs=3, pause_s=0.0):
        number, values = self.study.ask(resolve_space(Config, {"precision": "fp32"}, {}))
        self.study.record_config(number, values)
        self.exporter.on_trial_start(number, values)
        for epoch in range(1, epochs + 1):
            metrics = {"val/loss": 1 / epoch}
            self.study.report(number, epoch, 1 / epoch, {"metrics": metrics, "checkpoint": None})
            self.exporter.on_trial_report(number, epoch, metrics, 0.0)
            time.sleep(pause_s)
        self.study.end(number, "completed")
        self.exporter.on_trial_end(number, "completed", "")

    def rows(self):
        with open(self.path, "rb") as file:  # by its path, pyarrow opens it twice: it may be another one by then
            table = pq.read_table(file)
        return [(row["trial_id"], row["epoch"], row["outcome"]) for row in table.to_pylist()]

    def wait_for(self, rows):
        until = time.monotonic() + LIMIT_S
        while not (self.path.exists() and len(self.rows()) == rows):
            assert time.monotonic() < until, f"there are not {rows} rows: {self.said}"
            time.sleep(0.01)


@pytest.fixture
def searched(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_callback, "EVERY_S", 0.02)
    made = Searched(tmp_path)
    yield made
    made.store.close()


def test_the_file_follows_the_search_and_can_be_read_at_any_moment(searched):
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
    trials, until = 0, time.monotonic() + LIMIT_S
    try:
        with searched.exporter:
            while len(set(lengths)) < 4 and time.monotonic() < until:
                searched.run_trial(pause_s=0.02)
                trials += 1
            searched.wait_for(3 * trials)
    finally:
        over.set()
        reader.join(LIMIT_S)
    assert errors == []
    assert len(set(lengths)) >= 4
    assert lengths == sorted(lengths)
    assert searched.said == []


def test_at_the_end_it_has_all_that_came_since(searched, monkeypatch):
    monkeypatch.setattr(parquet_callback, "EVERY_S", 3600.0)
    with searched.exporter:
        searched.run_trial()
        assert not searched.path.exists()
    assert searched.rows() == [(0, 1, "completed"), (0, 2, "completed"), (0, 3, "completed")]


def test_a_search_that_is_taken_up_and_has_nothing_more_to_do_writes_what_its_driver_had_not(searched, tmp_path):
    searched.run_trial()
    with ParquetCallback(searched.study, tmp_path, searched.said.append):
        pass
    assert len(searched.rows()) == 3


def test_a_disk_that_is_full_is_told_once_and_the_last_good_file_stays_until_there_is_room(searched):
    searched.run_trial()
    with searched.exporter:
        searched.wait_for(3)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            searched.exporter.on_trial_report(0, 3, {}, 0.0)
            until = time.monotonic() + LIMIT_S
            while not searched.said and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(0.2)  # in which it fails again and again
            assert len(searched.rows()) == 3
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        (line,) = searched.said
        assert line.startswith(f"{searched.path} cannot be written: ")
        assert line.endswith("the search goes on")
        searched.run_trial()
        searched.wait_for(6)
        assert len(searched.said) == 1


def test_what_cannot_be_written_at_the_end_is_told_with_what_to_do(searched, tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_callback, "EVERY_S", 3600.0)
    searched.path.mkdir()
    with searched.exporter:
        searched.run_trial()
    (line,) = searched.said
    assert line.endswith(f"python search/report.py {tmp_path.name} --storage {tmp_path.parent} writes it again")
    searched.path.rmdir()


def test_an_event_asks_for_its_own_trial_alone_so_that_it_costs_the_same_however_many_there_are(searched, monkeypatch):
    monkeypatch.delattr(type(searched.study), "get_trials")
    with searched.exporter:
        searched.run_trial()
    assert len(searched.rows()) == 3
