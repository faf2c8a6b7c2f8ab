"""Whole searches over training functions, run as a user runs them."""

import re

import pytest

from tests.end_to_end.finished_search import FinishedSearch

JUDGED = ["--objective", "loss", "--mode", "min"]


@pytest.mark.slow
def test_two_workers_train_with_ddp_despite_a_lost_one(make_cli):
    cli = make_cli()
    options = ["--workers", "2", "--trials", "2", "--scheduler", "none"]
    fixed = ["--search", "lr=1e-3..1e-1:log", "--set", f"marker={cli.folder / 'lost'}"]
    found = FinishedSearch.run(cli, "pair", "plain.py:train_fn", *options, *fixed, *JUDGED)
    assert (cli.folder / "lost").exists()
    assert found.json["outcomes"] == {"completed": 2}
    assert found.epochs() == {0: [1, 2, 3], 1: [1, 2, 3]}
    assert [row["reported/epoch"] for row in found.rows] == [0, 1, 2] * 2
    assert {row["ranks"] for row in found.rows} == {2}
    assert {row["seen"] for row in found.rows} == {32}, "half of the samples on each rank"


def test_function_that_catches_everything_is_stopped(make_cli):
    cli = make_cli()
    calls = cli.folder / "calls"
    options = ["--trials", "8", "--concurrency", "1", "--sampler", "random", "--seed", "1"]
    fixed = ["--search", "x=0.0..1.0", "--set", "epochs=3", f"calls={calls}"]
    found = FinishedSearch.run(cli, "careless", "plain.py:careless", *options, *fixed, *JUDGED)
    assert set(found.json["outcomes"]) == {"completed", "pruned", "failed"}
    failed = {row["trial_id"]: row["reason"] for row in found.rows if row["outcome"] == "failed"}
    assert failed.keys() == {row["trial_id"] for row in found.rows if row["config/x"] > 0.6}
    assert all(
        map(re.compile(r"ValueError: x is too large, at plain.py, line \d+, in careless").fullmatch, failed.values())
    )
    assert {tuple(numbers) for numbers in found.epochs().values()} == {(1,), (1, 2, 3)}
    assert found.json["best"]["checkpoint"] is None
    went_on = sum(len(numbers) == 3 for numbers in found.epochs().values())
    pids = [line.split()[0] for line in calls.read_text().splitlines()]
    assert len(pids) == 8 + went_on, "one that goes on starts over"
    assert len(set(pids)) == 1, "in one process"
    assert not (cli.folder / "swallowed").exists()
    note = f"trial {found.json['best']['trial_id']}: without a checkpoint of report 1 it continues after report 0"
    assert note in found.done.stderr
