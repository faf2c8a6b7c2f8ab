"""`search/report.py NAME --replay` into the default store."""

import pytest
from mlflow.tracking import MlflowClient

from search.quiet import SETTINGS
from search.study import create
from tests.search.studies import Search, replayed


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name, value in SETTINGS.items():
        monkeypatch.setenv(name, value)


def statuses(search):
    client = MlflowClient(f"sqlite:///{search.config.storage}/mlflow.db")
    found = client.search_runs([client.get_experiment_by_name("arc").experiment_id])
    return {run.data.tags.get("trial_id", "parent"): run.info.status for run in found}


def test_a_search_whose_study_is_in_a_database_is_told(tmp_path):
    search = Search(tmp_path, study=f"sqlite:///{tmp_path}/studies.db")
    number = search.begin()
    search.report(number, 1, 0.5)
    search.end(number, "pruned", "not among the best")
    done = replayed(search)
    assert done.exit_code == 0, done.stderr
    assert "lacked something of 1 of 1 trials, and has it now" in done.stdout
    assert statuses(search) == {"parent": "FINISHED", "0": "KILLED"}


def test_a_search_that_died_before_its_first_report_has_ended(tmp_path):
    search = Search(tmp_path)
    search.begin()
    assert replayed(search).exit_code == 0
    assert statuses(search) == {"parent": "KILLED", "0": "KILLED"}


def test_a_search_that_another_process_runs_is_refused_in_a_line(tmp_path):
    search = Search(tmp_path)
    held, search.store = search.store, Search(tmp_path, "other").store
    refused = replayed(search)
    assert refused.exit_code == 2
    assert refused.stderr.splitlines() == ["one must not be running, but another process has it open."]
    held.close()


def test_a_search_that_never_began_is_refused_in_a_line(tmp_path):
    search = Search(tmp_path)
    search.store.close()
    search.config = search.config.model_copy(update={"name": "empty"})
    search.config.folder.mkdir()
    _, search.store = create(search.config.folder, lambda number: None, "val/score", "max")
    refused = replayed(search)
    assert refused.exit_code == 2
    assert refused.stderr.splitlines() == ["name must be a search that has begun, but empty ended before it did."]
