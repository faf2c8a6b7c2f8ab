"""A whole search over a training function, run as a user runs it."""

import pytest

from tests.end_to_end.finished_search import FinishedSearch


@pytest.mark.slow
def test_two_workers_train_with_ddp_despite_a_lost_one(make_cli):
    cli = make_cli()
    options = ["--workers", "2", "--trials", "2", "--scheduler", "none", "--objective", "loss:min"]
    fixed = ["--search", "lr=1e-3..1e-1:log", "--set", f"marker={cli.folder / 'lost'}"]
    found = FinishedSearch.run(cli, "pair", "plain.py:train_fn", *options, *fixed)
    assert (cli.folder / "lost").exists()
    assert found.json["outcomes"] == {"completed": 2}
    assert found.epochs() == {0: [1, 2, 3], 1: [1, 2, 3]}
    assert [row["reported/epoch"] for row in found.rows] == [0, 1, 2] * 2
    assert {row["ranks"] for row in found.rows} == {2}
    assert {row["seen"] for row in found.rows} == {32}, "half of the samples on each rank"
