"""Names that MLflow refuses are found before a search begins, and all others are logged."""

import pytest
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from searchlight.search.space.objectives import Objective
from searchlight.search.tracking.events import make_search_end
from searchlight.search.tracking.run_content import LONGEST_EXPERIMENT, LONGEST_METRIC, find_refused_names
from tests.search.tracking.test_tracking import config
from tests.search.tracking.trackers import finish, runs_of, track

pytestmark = pytest.mark.usefixtures("mlflow_db")


def test_names_that_are_not_refused_are_logged_and_longer_ones_are_not(tmp_path):
    experiment, metric = "e" * LONGEST_EXPERIMENT, f"val/{'x' * (LONGEST_METRIC - 4)}"
    objective = Objective(metric, "min")
    assert [*find_refused_names(experiment, [objective])] == []
    tracker = track(config(tmp_path, experiment=experiment), objectives=[objective])
    tracker.trials.start(0, {"lr": 0.5})
    tracker.trials.report(0, 1, {metric: 0.5}, 1e9)
    tracker.trials.end(0, "completed")
    tracker.finish(make_search_end("FINISHED", "", {f"confirmed/{metric}_high": 0.25}), [], 120.0)
    runs = runs_of(tracker)
    assert [runs[name].info.status for name in ("0", "parent")] == ["FINISHED"] * 2
    assert runs["0"].data.metrics == {f"{group}{metric}": 0.5 for group in ("", "Objective/", "best/")}
    assert runs["parent"].data.metrics == {f"confirmed/{metric}_high": 0.25}
    with pytest.raises(MlflowException, match="exceeds the maximum length of 250 characters"):
        MlflowClient(tracker.tracking_uri).log_metric(tracker.run_id, f"confirmed/{metric}x_high", 0.25)
    assert [*find_refused_names(f"{experiment}e", [Objective(f"{metric}x", "min")])] == [
        f"--experiment must have at most 256 characters for MLflow, but got 257: {'e' * 20}...",
        f"--objective must have at most 235 characters for MLflow, but got 236: val/{'x' * 16}...",
    ]


@pytest.mark.parametrize("metric", ["val//loss", "/loss", "loss/", "../loss", "val/./loss"])
def test_objective_that_is_no_name_of_mlflow_is_refused(tmp_path, metric):
    tracker = track(config(tmp_path))
    finish(tracker)
    with pytest.raises(MlflowException, match="Names may be treated as files"):
        MlflowClient(tracker.tracking_uri).log_metric(tracker.run_id, f"best/{metric}", 0.25)
    assert [*find_refused_names("one", [Objective(metric, "min")])] == [
        f"--objective must be like val/loss for MLflow, without empty parts, '.' or '..', but got '{metric}'."
    ]
