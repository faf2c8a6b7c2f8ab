import pytest
from click.testing import CliRunner

from searchlight.search.run import main
from tests.conftest import TASKS
from tests.search.stored_studies import Search


@pytest.fixture
def plan_line(tmp_path):
    """Returns the line of a dry run about something, by default about checkpoints; None if it has none."""

    def run(*options, task="arc", about="checkpoints"):
        arguments = [task, "--storage", str(tmp_path / "runs"), "--dry-run", *options]
        done = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"# {about}: ")]
        return lines[0].removeprefix(f"# {about}: ") if lines else None

    return run


def test_plan_without_an_earlier_search_knows_no_size(plan_line):
    line = "those of the best 10 of the trials, the best confirming run of each config, "
    line += "and up to 3 of each trial that has not ended; "
    assert plan_line("--trials", "1000") == f"{line}their size is unknown until the first checkpoint"
    front = ("--objective", "val/score", "--objective", "cost:min")
    assert plan_line("--trials", "4", *front).startswith("those of the best 4 of the trials and the Pareto front, the ")
    assert plan_line("--confirm", "0").startswith("those of the best 10 of the trials, and up to 3 of each trial ")


def test_plan_has_the_space_that_an_earlier_search_shows(plan_line, tmp_path):
    earlier = Search(tmp_path / "runs", "earlier")
    earlier.store.close()
    for number, name, size in [(0, "epoch-1-a.pt", 2_000_000), (1, "epoch-1-a.pt.sha256", 9_000_000), (2, "dir/a", 1)]:
        path = earlier.config.local_path / "checkpoints" / str(number) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(size))
    (path.parent / "b").write_bytes(bytes(2_500_000))
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "search.yaml").write_text("[")
    line = plan_line("--trials", "1000", "--keep-checkpoints", "4")
    assert line.endswith("that has not ended; about 2.5 MB each as in earlier, 10 MB for the best 4")


AGAIN = "the best trials and the defaults train again under new seeds"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ("--trials", "20", "--set", "epochs=9", "--scheduler", "none"),
            "at most 6 runs of 9 epochs, 54 in all; the trials take about 180",
        ),
        (
            ("--trials", "99", "--set", "epochs=9", "--scheduler", "none"),
            "at most 19 runs of 9 epochs, 171 in all; the trials take about 891",
        ),
        (("--trials", "20", "--set", "epochs=9", "--confirm", "8"), "at most 8 runs of 9 epochs, 72 in all; "),
        (("--search", "epochs=3..9", "--scheduler", "none"), "for a fifth of what the trials took, at least 6 runs"),
    ],
    ids=["few trials", "many trials", "number of runs", "trials of own lengths"],
)
def test_plan_says_what_the_confirmation_costs(plan_line, options, line):
    assert plan_line(*options, about="confirmation").startswith(f"{AGAIN}, {line}")


def test_plan_of_a_function_confirms_no_defaults(plan_line):
    options = ("--objective", "loss:min", "--search", "lr=0.1..1", "--scheduler", "none")
    told = plan_line(*options, "--confirm", "8", task=f"{TASKS}/plain.py:train_fn", about="confirmation")
    assert told == "the best trials train again under new seeds, at most 8 runs"


@pytest.mark.parametrize("options", [("--confirm", "0"), ("--once",), ("--scheduler", "pbt")], ids=" ".join)
def test_plan_without_a_confirmation_says_nothing_of_it(plan_line, options):
    assert plan_line(*options, about="confirmation") is None
