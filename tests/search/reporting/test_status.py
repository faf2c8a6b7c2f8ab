"""The state of a search: what is used and left, what waits, when it ends, and what goes wrong."""

import time

import pytest

from searchlight.search.analysis.ranking import GPU_MEMORY
from searchlight.search.errors import UsageError
from searchlight.search.reporting.console.search_state import describe_status
from searchlight.search.reporting.running_search import RunningSearch
from searchlight.search.reporting.status import build_status
from searchlight.search.steering.command import Answer, Command, LogEntry
from searchlight.search.steering.driver_state import DriverState, read_state, write_state
from searchlight.search.study.record import load_search
from searchlight.trainables.worker.messages import EpochReport
from tests.search.execution.searcher_harness import end, hand_on, report
from tests.search.output_schemas import check_output


@pytest.fixture
def running(make_searcher, tmp_path):
    """A searcher whose driver has begun, with one trial that waits at its first rung of two, and one that trains."""
    searcher, study, _ = make_searcher(trials=6)
    study.save_metadata({"config": {"trials": 6, "gpu_hours": 2.0, "scheduler": "asha"}, "rungs": [1, 3]})
    study.record_driver_start(time.time())
    searcher.suggest("t0")
    report(searcher, "t0", 1, 0.5, done=True)
    searcher.suggest("t1")
    study.commit()
    return searcher


def status_of(place, **state):
    record = load_search(place)
    driver = DriverState(time.time(), **state) if state else None
    status = check_output("status", build_status(record, driver))
    return status, "\n".join(describe_status(record, status))


def test_budget_is_what_the_driver_goes_by(running, tmp_path):
    status, told = status_of(tmp_path, live=[1], trials=8, gpu_hours=3.0, gpu_s=3600.0, concurrency=2)
    assert status["budget"]["trials"] == {"used": 2, "limit": 8, "left": 6}
    assert status["budget"]["gpu_hours"] == {"used": 1.0, "limit": 3.0, "left": 2.0}
    assert status["budget"]["seconds"]["limit"] is None
    assert "budget: trials 2 of 8, 6 left; worker time 1:00:00 of 3:00:00, 2:00:00 left; time 0:0" in told
    assert "2 at a time" in told


def test_time_of_trials_is_told_as_that_of_gpus_if_they_take_some(running, tmp_path):
    assert "; worker time 0:00 of 2:00:00" in status_of(tmp_path)[1]
    hand_on(running, "t1", EpochReport(1, {"val/loss": 0.5, GPU_MEMORY: 1.0}, "1.pt", {}))
    running.study.commit()
    assert "; GPU time 0:00 of 2:00:00" in status_of(tmp_path)[1]


def test_budget_without_a_driver_is_that_of_the_config_and_of_commands(running, tmp_path):
    running.study.record_command(LogEntry(1, Command("budget", {"trials": 9}), Answer(True, "")))
    running.study.commit()
    budget = status_of(tmp_path)[0]["budget"]
    assert budget["trials"] == {"used": 2, "limit": 9, "left": 7}
    assert (budget["gpu_hours"]["limit"], budget["seconds"]["used"], budget["concurrency"]) == (2.0, None, None)


def test_state_of_the_driver_before_counts_no_more(running, tmp_path):
    status = build_status(load_search(tmp_path), DriverState(1.0, [0, 1], trials=99))
    assert status["budget"]["trials"]["limit"] == 6
    assert [trial["trains"] for trial in status["unfinished"]] == [None, None]


def test_trial_that_waits_is_told_with_the_reason(running, tmp_path):
    status, told = status_of(tmp_path, live=[1])
    assert [trial["trains"] for trial in status["unfinished"]] == [False, True]
    assert "waiting for a rank among the best at its rung, or free workers: trial 0\n" in told
    assert "  trial 1: epoch 0\n" in told
    before = DriverState(load_search(tmp_path).drivers[-1][0], [], trials=9)
    status = build_status(load_search(tmp_path), before)
    assert status["budget"]["trials"]["limit"] == 9
    assert [each["trains"] for each in status["unfinished"]] == [None, None], "both have gone on since"
    point = Command("try", {"point": {"lr": 0.25}}, "ann", "a hunch")
    pause = Command("pause", {}, "bob", "lunch")
    for revision, command in enumerate([point, pause], start=1):
        running.study.record_command(LogEntry(revision, command, Answer(True, "")))
    running.study.commit()
    status, told = status_of(tmp_path, live=[], waiting="1 of the gangs wait for room", left_s=9.0, basis="a guess")
    assert status["waiting"] == [
        f"paused by bob: lunch. Let it go on: searchlight continue {tmp_path.name} --storage {tmp_path.parent}",
        "1 of the gangs wait for room",
        "the point lr=0.25 by ann: a hunch waits for its turn",
    ]
    assert {trial["waits_for"] for trial in status["unfinished"]} == {"the search to continue"}
    assert status["expected_end"] is None, "a pause has no end"


def test_expected_end_is_told_with_what_it_follows_from(running, tmp_path):
    assert status_of(tmp_path, live=[1])[0]["expected_end"] is None, "nothing supports one"
    status, told = status_of(tmp_path, live=[1], left_s=90.0, basis="its time limit")
    assert "expected end: in 1:30, by its time limit" in told
    assert status["expected_end"]["at"] == pytest.approx(time.time() + 90, abs=60)


def test_problems_are_told(running, tmp_path):
    running.reports.handle_gang_failure(1, "the node died")
    running.suggest("t2")
    end(running, "t2", "failed", "no such file")
    running.suggest("t3")
    end(running, "t3", "diverged", "train/loss is not finite")
    running.study.commit()
    warnings = [(0.0, "trials.parquet cannot be written: the disk is full")]
    problems = status_of(tmp_path, warnings=warnings)[0]["problems"]
    assert problems[0].startswith("diverged: ")
    assert problems[1] == "failed: 1 trial, the last one is trial 1: no such file"
    assert problems[2] == "lost workers: 1 time, the last time those of trial 1: the node died"
    assert problems[3].endswith("trials.parquet cannot be written: the disk is full")
    silent = build_status(load_search(tmp_path), DriverState(time.time() + 1e-3))
    assert not any("last word" in problem for problem in silent["problems"])


def test_driver_that_writes_nothing_is_a_problem(running, tmp_path, monkeypatch):
    state = DriverState(time.time())
    monkeypatch.setattr(time, "time", lambda: state.at + 125)
    problems = build_status(load_search(tmp_path), state)["problems"]
    last_word = "the driver's last word is 2:05 old by this machine's clock"
    assert problems == [f"{last_word}: it was killed or is cut off, unless the clocks differ"]


def test_state_of_a_later_version_is_read(tmp_path):
    assert read_state(tmp_path) is None
    write_state(tmp_path, DriverState(1.0, [3]))
    text = (tmp_path / "driver.json").read_text().replace('"live"', '"later": 1, "live"')
    (tmp_path / "driver.json").write_text(text)
    assert read_state(tmp_path) == DriverState(1.0, [3], warnings=[])


@pytest.mark.parametrize("text", ["{", "[]", '{"at": "x"}', '{"live": [1]}'])
def test_damaged_state_is_told_in_one_line(tmp_path, text):
    (tmp_path / "driver.json").write_text(text)
    with pytest.raises(
        UsageError, match=r"driver\.json must be what a driver has written, but .*\. Remove it"
    ) as caught:
        read_state(tmp_path)
    assert "\n" not in str(caught.value)


def test_state_of_a_search_is_that_of_its_driver(running, tmp_path):
    write_state(tmp_path, DriverState(time.time(), [1], trials=7))
    assert RunningSearch(tmp_path).status()["budget"]["trials"]["limit"] == 7
