"""A whole search over a training function, run as a user runs it."""

import json

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


@pytest.mark.slow
def test_mistake_in_a_function_ends_the_search_after_one_trial(make_cli):
    cli = make_cli()
    cli.has_preflight = True  # the first trial begins alone
    file = cli.folder / "wrong.py"
    file.write_text("import ray.train\n\n\ndef train_fn(config):\n    ray.train.report({'loss': config['rate']})\n")
    options = ["--trials", "6", "--scheduler", "none", "--objective", "loss:min", "--search", "lr=1e-3..1e-1:log"]
    done = cli.run("wrong.py:train_fn", *options, "--concurrency", "2", "--confirm", "0", "--name", "wrong")
    assert done.returncode == 2, done.stdout
    remedy = "the config has no value of that name; add --set rate=VALUE"
    assert f"trial 0 failed before its first report: KeyError: 'rate': {remedy}, at wrong.py, line 5" in done.stderr
    assert "in train_fn" in (cli.folder / "runs" / "wrong" / "errors" / "trial-0.txt").read_text(encoding="utf-8")
    assert "trial 1" not in done.stderr
    assert done.stderr.count("KeyError") == 1, "and no other reason"
    assert done.stderr.count("resume wrong") == 1
    file.write_text(file.read_text().replace("rate", "lr"))
    resumed = cli.run("--resume", "wrong", "--json")
    assert json.loads(resumed.stdout)["outcomes"] == {"completed": 6}, resumed.stderr
