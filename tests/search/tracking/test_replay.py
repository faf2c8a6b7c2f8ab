"""What MLflow is told from the study: after an outage, and by `search/report.py NAME --replay`; the default store."""

import pytest
from mlflow.tracking import MlflowClient

from search.config.libraries import SETTINGS
from search.study.study import create_study
from search.tracking import tracker as tracking
from search.tracking.runs import Runs
from search.tracking.tracker import MLflowCallback
from search.tracking.uri import resolve_tracking_uri
from tests.search.objectives import VAL_SCORE
from tests.search.stored_studies import Search, replayed


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


def test_trials_that_were_cut_off_when_more_had_come_than_is_kept_in_memory_are_interrupted(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "MOST", 2)
    search = Search(tmp_path)
    where = resolve_tracking_uri(search.config, {})
    tracker = MLflowCallback(Runs(search.config, *where, "id of one", search.study.objectives))
    search.observers = [tracker]
    for number in (search.begin(), search.begin(), search.begin()):
        search.report(number, 1, 0.5)
    search.end(0, "completed")
    for number in (1, 2):
        tracker.on_trial_end(number, "interrupted", "the search was stopped")
    tracker.finish("KILLED", "", {}, [], 60.0)
    search.store.close()
    assert statuses(search) == {"parent": "KILLED", "0": "FINISHED", "1": "KILLED", "2": "KILLED"}


def test_a_search_that_is_replayed_twice_has_its_best_value_once(tmp_path):
    search = Search(tmp_path)
    number = search.begin()
    search.report(number, 1, 0.5)
    search.end(number, "completed")
    assert [replayed(search).exit_code, replayed(search).exit_code] == [0, 0]
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    query = "tags.mlflow.runName = 'one'"
    (parent,) = client.search_runs([client.get_experiment_by_name("arc").experiment_id], query)
    assert [point.value for point in client.get_metric_history(parent.info.run_id, "best/val/score")] == [0.5]


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
    search.config.local_path.mkdir()
    _, search.store = create_study(search.config.local_path, lambda number: None, [VAL_SCORE])
    refused = replayed(search)
    assert refused.exit_code == 2
    assert refused.stderr.splitlines() == ["name must be a search that has begun, but empty ended before it did."]
