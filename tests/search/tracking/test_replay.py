import pytest
from mlflow.tracking import MlflowClient

from searchlight.search.study.study import create_study
from searchlight.search.tracking.events import make_search_end
from tests.search.objectives import VAL_SCORE
from tests.search.stored_studies import Search, always_random, replayed
from tests.search.tracking.trackers import runs_in, track_stored

pytestmark = pytest.mark.usefixtures("mlflow_db")


def runs_told(search):
    uri = f"sqlite:///{search.config.storage}/mlflow.db"
    return runs_in(uri, MlflowClient(uri).get_experiment_by_name("arc").experiment_id)


def statuses(search):
    return {name: run.info.status for name, run in runs_told(search).items()}


def test_search_in_a_database_is_replayed(tmp_path):
    search = Search(tmp_path, study=f"sqlite:///{tmp_path}/studies.db")
    search.run(0.5, outcome="pruned", reason="not among the best")
    done = replayed(search)
    assert done.exit_code == 0, done.stderr
    assert "now has the missing events of 1 of 1 trials" in done.stdout
    assert statuses(search) == {"parent": "FINISHED", "0": "FINISHED"}


def test_dead_search_without_a_report_is_replayed_as_killed(tmp_path):
    search = Search(tmp_path)
    search.begin()
    assert replayed(search).exit_code == 0
    assert statuses(search) == {"parent": "KILLED", "0": "KILLED"}


def test_unfinished_trials_are_interrupted_at_the_end(tmp_path):
    search = Search(tmp_path)
    tracker = track_stored(search)
    for number in (search.begin(), search.begin(), search.begin()):
        search.report(number, 1, 0.5)
    search.end(0, "completed")
    for number in (1, 2):
        search.tell(number, is_over=True)
    tracker.finish(make_search_end("KILLED", ""), [], 60.0)
    search.store.close()
    assert statuses(search) == {"parent": "KILLED", "0": "FINISHED", "1": "KILLED", "2": "KILLED"}


def test_search_replayed_twice_has_its_best_value_once(tmp_path):
    search = Search(tmp_path)
    search.run(0.5)
    assert [replayed(search).exit_code, replayed(search).exit_code] == [0, 0]
    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    history = client.get_metric_history(runs_told(search)["parent"].info.run_id, "best/val/score")
    assert [point.value for point in history] == [0.5]


def test_running_or_empty_search_is_refused_in_a_line(tmp_path):
    search = Search(tmp_path)
    held, search.store = search.store, Search(tmp_path, "other").store
    refused = replayed(search)
    assert refused.exit_code == 2
    assert refused.stderr.splitlines() == ["one must not be running, but another process has it open."]
    held.close()
    search.config = search.config.model_copy(update={"name": "empty"})
    search.config.local_path.mkdir()
    _, search.store = create_study(search.config.local_path, always_random, [VAL_SCORE])
    refused = replayed(search)
    assert refused.exit_code == 2
    assert refused.stderr.splitlines() == ["name must be a search that has begun, but empty ended before it did."]
