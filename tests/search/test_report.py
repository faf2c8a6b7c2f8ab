import pytest
from click.testing import CliRunner
from optuna.samplers import RandomSampler

from search.config.search_space import resolve_space
from search.report import main
from search.study.study import create_study
from tests.search.conftest import Config
from tests.search.objectives import VAL_SCORE


@pytest.fixture
def storage(tmp_path):
    """The folder of a search, "one", of which a driver holds the study."""
    (tmp_path / "one").mkdir()
    study, store = create_study(tmp_path / "one", RandomSampler, [VAL_SCORE])
    number, _ = study.ask(resolve_space(Config, {"precision": "fp32"}, {}))
    study.record_config(number, {})
    study.report(number, 1, 0.25, {"metrics": {"val/score": 0.25}, "checkpoint": None})
    yield tmp_path
    store.close()


def report(*arguments):
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


def test_a_search_that_runs_is_printed_and_its_files_are_written(storage):
    printed = report("one", "--storage", storage).stdout
    assert "val/score" in printed
    assert f"page: {storage / 'one' / 'report.html'}" in printed
    assert "Trial 0 reached val/score 0.25" in (storage / "one" / "report.html").read_text()
    assert (storage / "one" / "trials.parquet").exists()


def test_a_search_can_be_named_by_its_folder(storage, monkeypatch):
    monkeypatch.chdir(storage.parent)
    assert f"page: {storage / 'one' / 'report.html'}" in report(f"{storage.name}/one/").stdout


def test_a_search_that_is_not_there_is_told_in_a_line(storage):
    done = report("two", "--storage", storage)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)


def test_files_that_cannot_be_written_are_told_in_a_line_below_the_table(storage):
    (storage / "one" / "report.html").mkdir()
    done = report("one", "--storage", storage)
    assert done.exit_code == 2
    assert "val/score" in done.stdout
    assert done.stderr.startswith("--storage must be a folder that can be written to, but ")
    assert done.stderr.count("\n") == 1


def test_options_for_one_search_are_refused_when_comparing(storage):
    done = report("one", "--storage", storage, "--compare", "two", "--replay", "--register", "model")
    assert (done.exit_code, done.stderr) == (
        2,
        "--compare must come without --replay and --register. Give them in a call of their own.\n",
    )


def test_register_with_a_wrong_name_is_refused(storage):
    done = report("one", "--storage", storage, "--register", "a/b")
    assert (done.exit_code, done.stderr.split(", but")[0]) == (
        2,
        "--register must be a name of letters, digits, spaces, '.', '_' or '-'",
    )
