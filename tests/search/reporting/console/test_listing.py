import pytest
from click.testing import CliRunner

from search.run import main
from tests.search.stored_studies import Search


@pytest.fixture
def plan_line(tmp_path):
    """Returns the line of a dry run about checkpoints."""

    def run(*options):
        arguments = ["arc", "--storage", str(tmp_path / "runs"), "--dry-run", *options]
        done = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert done.exit_code == 0, done.stderr
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("# checkpoints: "))
        return line.removeprefix("# checkpoints: ")

    return run


def test_plan_without_an_earlier_search_knows_no_size(plan_line):
    line = "those of the best 10 of the trials, and up to 3 of each trial that has not ended; "
    assert plan_line("--trials", "1000") == f"{line}their size is unknown until the first checkpoint"
    front = ("--objective", "val/score", "--objective", "cost:min")
    assert plan_line("--trials", "4", *front).startswith("those of the best 4 of the trials and the Pareto front, and")


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
