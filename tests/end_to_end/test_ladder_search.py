"""Searches at several sizes, as a user runs and resumes them."""

import json

import pytest

from searchlight.search.study.record import load_search

OPTIONS = ["--trials", "6", "--name", "grown", "--scheduler", "none", "--confirm", "4", "precision=fp32", "epochs=1"]


@pytest.fixture(scope="module")
def ladder(make_cli):
    """The command line, and what it printed of searches at two sizes, and of their resume."""
    cli = make_cli()
    sizes = ["--sizes", "width=8,32", "--target", "width=64", "--exponent", "lr/width=-0.5"]
    first = cli.run("growing.py:Growing", *sizes, *OPTIONS)
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
    best = min(small.trials, key=lambda trial: trial.value)
    assert large.trials[0].params == best.params, "the unchanged setting comes first"
    assert large.trials[1].params["lr"] == pytest.approx(0.05, rel=0.3), "the predicted one follows"
    assert {run.user_attrs["confirms"]["trial"] for run in large.confirming_runs} >= {None}
    assert (cli.folder / "runs" / "grown" / "ladder.html").stat().st_size > 10**6


@pytest.mark.slow
def test_resume_of_complete_sizes_trains_nothing_and_tells_the_same(ladder):
    cli, _, resumed = ladder
    assert resumed.returncode == 0, resumed.stderr
    told = json.loads(resumed.stdout)
    assert told == json.loads((cli.folder / "runs" / "grown" / "ladder.json").read_text())
    assert [size["trials"] for size in told["sizes"]] == [6, 4]
    assert {*told["values"]} == {"lr"}
    assert told["values"]["lr"]["low"] <= told["values"]["lr"]["value"] <= told["values"]["lr"]["high"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sizes", "wide=8,16"], "at size wide8: --set wide must name a parameter"),
        (["--sizes", "width=8,x"], "--sizes.widthx.width must be a valid number"),
        (["--sizes", "width=8,16", "--once"], "--sizes must come without --once"),
        (["--sizes", "width=8,16", "--dry-run"], "--sizes must come without --dry-run"),
    ],
)
def test_wrong_sizes_are_refused_before_anything_is_written(ladder, options, message):
    cli, *_ = ladder
    refused = cli.run("growing.py:Growing", "--name", "refused", *options)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert not [*(cli.folder / "runs").glob("refused*")]
