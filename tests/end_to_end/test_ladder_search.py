"""Searches at several sizes, as a user runs and resumes them."""

import json
import signal
import sys

import pytest

from searchlight.search.storage.bucket_journal import BucketJournalBackend, read_records
from searchlight.search.study.record import load_search
from searchlight.search.study.trial import get_reports
from searchlight.trainables.filesystem.paths import parse_path
from tests.end_to_end.processes import contains, wait_until

OPTIONS = ["--trials", "6", "--name", "grown", "--confirm", "4", "precision=fp32", "epochs=1"]
TWO = ["--objective", "val/loss", "--objective", "train/loss:min"]
# Its first trial goes on until it is stopped.
PROGRAM = """
import argparse, time
import searchlight
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--width", type=int, required=True)
parser.add_argument("--seed", type=int, default=0)
given = parser.parse_args()
epoch = 0
while epoch < 1 or (given.lr == 0.1 and given.width == 8):
    epoch += 1
    searchlight.report(step=epoch, loss=abs(given.lr - 0.8 / given.width) + given.seed % 7 / 1000)
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def ladder(make_cli):
    """The command line, and what it printed of searches at two sizes, and of their resume."""
    cli = make_cli()
    sizes = ["--sizes", "8,32 workers=1,2", "--target", "64", "--exponent", "lr/width=-0.5"]
    first = cli.run("growing.py:Growing", "--scheduler", "none", *sizes, *TWO, *OPTIONS)
    assert first.returncode == 0, first.stderr
    return cli, first, cli.run("--resume", "grown", "--json")


@pytest.mark.slow
def test_sizes_are_searched_in_turn_and_the_law_is_told(ladder):
    cli, first, _ = ladder
    assert "the setting for width=64:" in first.stdout
    assert "unchanged" in first.stdout
    small, large = (load_search(cli.folder / "runs" / f"grown-width{width}") for width in (8, 32))
    assert (len(small.trials), len(small.confirming_runs)) == (6, 0)
    assert len(large.trials) == 4
    assert len(large.confirming_runs) == 4
    assert {trial.user_attrs["config"]["width"] for trial in large.trials} == {32}
    best = min(small.trials, key=lambda trial: get_reports(trial)[1]["metrics"]["val/loss"])
    assert large.trials[0].params == best.params, "the unchanged setting comes first"
    assert large.trials[1].params["lr"] == pytest.approx(0.05, rel=0.3), "the predicted one follows"
    assert {run.user_attrs["confirms"]["trial"] for run in large.confirming_runs} >= {None}
    assert (cli.folder / "runs" / "grown" / "ladder.html").stat().st_size > 10**6


@pytest.mark.slow
def test_sizes_have_workers_of_their_own_and_the_first_objective_counts(ladder):
    cli, first, _ = ladder
    for width, workers in ((8, 1), (32, 2)):
        record = load_search(cli.folder / "runs" / f"grown-width{width}")
        assert record.about["config"]["workers"] == workers
        assert [objective.metric for objective in record.objectives] == ["val/loss", "train/loss"]
    assert "best val/loss" in first.stdout
    assert "Under new seeds: " in first.stdout


@pytest.mark.slow
def test_resume_of_complete_sizes_trains_nothing_and_tells_the_same(ladder):
    cli, _, resumed = ladder
    assert resumed.returncode == 0, resumed.stderr
    told = json.loads(resumed.stdout)
    assert told == json.loads((cli.folder / "runs" / "grown" / "ladder.json").read_text())
    assert [size["trials"] for size in told["sizes"]] == [6, 4]
    assert {*told["values"]} == {"lr"}
    assert told["values"]["lr"]["low"] <= told["values"]["lr"]["value"] <= told["values"]["lr"]["high"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sizes", "wide=8,16"], "at size wide8: --set wide must name a parameter"),
        (["--sizes", "width=8,x"], "--sizes.widthx.width must be a valid number"),
        (["--sizes", "width=8,16", "--once"], "--sizes must come without --once"),
        (["--sizes", "width=8,16", "--dry-run"], "--sizes must come without --dry-run"),
    ],
)
def test_wrong_sizes_are_refused_before_anything_is_written(make_cli, options, message):
    cli = make_cli()
    refused = cli.invoke("growing.py:Growing", "--name", "refused", *options)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert not (cli.folder / "runs").exists()


@pytest.mark.slow
def test_sizes_of_a_program_are_steered_and_continue_after_a_kill(make_cli):
    cli = make_cli()
    (cli.folder / "train.py").write_text(PROGRAM)
    (cli.folder / "searchlight").write_text("from searchlight.search.cli import main\nmain()\n")
    options = ["--search", "lr=0.01..0.5:log", "--try", "lr=0.1", "--trials", "5", "--scheduler", "none"]
    sizes = ["--sizes", "width=8,16", "--target", "width=32", "--confirm", "4", "--name", "grown", "--concurrency", "1"]
    command = ["--objective", "loss:min", "--seed-flag", "seed", "--", sys.executable, "train.py", "--width", "{width}"]
    process = cli.start(*options, *sizes, *command)
    small, large = (cli.folder / "runs" / f"grown-width{width}" for width in (8, 16))
    wait_until(lambda: contains(small / "study.journal", "report/2"), process)
    refused = cli.run("--resume", "grown")
    assert (refused.returncode, refused.stderr) == (2, "grown must not be running, but another process has it open.\n")
    status = cli.run("status", "grown-width8", "--json", script=cli.folder / "searchlight")
    assert json.loads(status.stdout)["running"], status.stderr
    stop = cli.run("stop", "grown-width8", "0", "--wait", "300", script=cli.folder / "searchlight")
    assert stop.returncode == 0, stop.stderr
    wait_until(large.exists, process)
    assert not (large / "search.yaml").exists(), "it is killed before the search at the second size begins"
    process.send_signal(signal.SIGKILL)
    process.communicate()

    done = cli.run("--resume", "grown", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [size["name"] for size in told["sizes"]] == told["ended"] == ["width8", "width16"]
    assert [size["trials"] for size in told["sizes"]] == [5, 4]
    assert {trial.user_attrs["outcome"] for trial in load_search(small).trials} == {"completed", "pruned"}
    assert len(load_search(large).confirming_runs) == 4
    assert "proof" in told


@pytest.mark.slow
def test_sizes_in_a_bucket_continue_from_another_machine(make_cli, s3, tmp_path):
    storage = f"{s3}/searches"
    place = parse_path(storage)
    first, second = make_cli("first"), make_cli("second")
    for machine in (first, second):
        machine.env |= {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}
    options = ["--storage", storage, "--sizes", "8,16", "--scheduler", "none", "--concurrency", "1", "--confirm", "0"]
    driver = first.start("growing.py:Growing", *options, "pause_s=0.1", "--trials", "4", "--name", "grown", "epochs=2")
    small = place / "grown-width8"
    wait_until(lambda: BucketJournalBackend(small).exists(), driver)
    wait_until(lambda: any(b"report/" in record for record in read_records(small)), driver)
    driver.send_signal(signal.SIGKILL)
    driver.communicate()
    for name in ("growing.py", "toy.py", "beside.py"):  # that machine is gone
        (first.folder / name).unlink()

    done = second.run("--resume", "grown", "--storage", storage, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [size["trials"] for size in told["sizes"]] == [4, 4]
    assert json.loads((place / "grown" / "ladder.json").read_text()) == told
    assert (place / "grown" / "ladder.html").exists()
    listed = second.invoke("--list", "--storage", storage)
    assert "grown  a search at each size: grown-width8, grown-width16" in listed.stdout.splitlines()
    again = second.run("--resume", "grown", "--storage", storage, "--json")
    assert json.loads(again.stdout) == told, "what had ended stays as it is"


@pytest.mark.slow
def test_large_size_is_sharded_over_more_workers_than_the_small_one(make_cli):
    cli = make_cli()
    fixed = "depth=1 heads=2 length=16 samples=40 batch_size=2 test_samples=8 epochs=1 precision=fp32 shard=full"
    sizes = ["--sizes", "16,32 workers=1,2", "--trials", "3", "--scheduler", "none", "--concurrency", "1"]
    done = cli.run("lm", *sizes, "--name", "sharded", "--no-preflight", "--json", "--set", *fixed.split())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ended"] == ["width16", "width32"]
    for width, workers in ((16, 1), (32, 2)):
        record = load_search(cli.folder / "runs" / f"sharded-width{width}")
        assert record.about["config"]["workers"] == workers
        assert {trial.user_attrs["outcome"] for trial in record.trials} == {"completed"}
