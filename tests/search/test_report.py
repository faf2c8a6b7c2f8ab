import pytest
import typer
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


def test_a_search_that_runs_is_printed_and_its_files_are_written(storage, capsys):
    main("one", storage)
    printed = capsys.readouterr().out
    assert "val/score" in printed
    assert f"page: {storage / 'one' / 'report.html'}" in printed
    assert "Trial 0 reached val/score 0.25" in (storage / "one" / "report.html").read_text()
    assert (storage / "one" / "trials.parquet").exists()


def test_a_search_can_be_named_by_its_folder(storage, capsys, monkeypatch):
    monkeypatch.chdir(storage.parent)
    main(f"{storage.name}/one/")
    assert f"page: {storage / 'one' / 'report.html'}" in capsys.readouterr().out


def test_a_search_that_is_not_there_is_told_in_a_line(storage, capsys):
    with pytest.raises(typer.Exit) as ended:
        main("two", storage)
    assert (ended.value.exit_code, capsys.readouterr().err.count("\n")) == (2, 1)


def test_files_that_cannot_be_written_are_told_in_a_line_below_the_table(storage, capsys):
    (storage / "one" / "report.html").mkdir()
    with pytest.raises(typer.Exit) as ended:
        main("one", storage)
    told = capsys.readouterr()
    assert ended.value.exit_code == 2
    assert "val/score" in told.out
    assert told.err.startswith("--storage must be a folder that can be written to, but ")
    assert told.err.count("\n") == 1
