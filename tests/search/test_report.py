import pytest
from click.testing import CliRunner

from searchlight.search.report import main
from tests.search.stored_studies import Search


@pytest.fixture
def storage(tmp_path):
    """The folder of a search, "one", of which a driver holds the study."""
    search = Search(tmp_path)
    search.report(search.begin(), 1, 0.25)
    yield tmp_path
    search.store.close()


def report(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


def test_running_search_is_printed_and_its_files_are_written(storage, monkeypatch):
    printed = report("one", "--storage", storage).stdout
    assert "val/score" in printed
    assert f"page: {storage / 'one' / 'report.html'}" in printed
    assert "Trial 0 reached val/score 0.25" in (storage / "one" / "report.html").read_text()
    assert (storage / "one" / "trials.parquet").exists()
    monkeypatch.chdir(storage.parent)
    assert f"page: {storage / 'one' / 'report.html'}" in report(f"{storage.name}/one/").stdout


def test_files_that_cannot_be_written_are_told_below_the_table(storage):
    (storage / "one" / "report.html").mkdir()
    done = report("one", "--storage", storage)
    assert done.exit_code == 2
    assert "val/score" in done.stdout
    assert done.stderr.startswith("--storage must be a folder that can be written to, but ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["two"], "name must be a search in "),
        (["one", "--compare", "two", "--replay", "--register", "model"],
         "--compare must come without --replay and --register. Call it once more with them.\n"),
        (["one", "--register", "a/b"], "--register must be a name of letters, digits, spaces, '.', '_' or '-', but"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_in_a_line(storage, arguments, problem):
    done = report(*arguments, "--storage", storage)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(problem)
