"""Data sets that trials named, in the study and in MLflow."""

from mlflow.tracking import MlflowClient
from optuna.samplers import RandomSampler

from search.config import load_config
from search.config.search_space import resolve_space
from search.study.study import create_study
from search.tracking.events import build_trial_events
from search.tracking.runs import Runs, to_dataset_inputs
from search.tracking.tracker import MLflowCallback
from search.tracking.uri import resolve_tracking_uri
from tests.search.objectives import VAL_SCORE
from trainables.task import TaskConfig, searchable

DIGEST = "0123456789abcdef" * 4
TRAINING = {"name": "digits", "digest": DIGEST, "source": "https://example.org/digits", "use": "training"}
EVALUATION = {"name": "held out", "digest": "b", "source": "", "use": "evaluation"}
OTHER = {"name": "digits", "digest": "c", "source": "/data/digits", "use": "training"}


class Config(TaskConfig):
    lr: float = searchable(0.5, low=0.0, high=1.0)


def track(settings):
    where = resolve_tracking_uri(settings, {})
    return MLflowCallback(Runs(settings, *where, "the search", [VAL_SCORE]))


def play(tracker, number, datasets):
    tracker.on_trial_start(number, {"lr": 0.1})
    tracker.on_trial_datasets(number, datasets)
    tracker.on_trial_report(number, 1, {"val/score": 0.5}, 1e9)
    tracker.on_trial_end(number, "completed", "")


def inputs_of(run):
    return sorted((each.dataset.name, each.dataset.digest, each.tags[0].value) for each in run.inputs.dataset_inputs)


def test_runs_have_the_data_of_their_trial_and_the_parent_has_each_once_also_when_it_is_told_again(tmp_path):
    settings = load_config({"task": "arc", "name": "one", "storage": str(tmp_path)})
    settings.local_path.mkdir()
    for trials in ([[TRAINING, EVALUATION], [TRAINING, EVALUATION]], [[TRAINING, EVALUATION], None, [OTHER]]):
        tracker = track(settings)
        for number, datasets in enumerate(trials):
            if datasets is not None:
                play(tracker, number, datasets)
        tracker.finish("FINISHED", "", {}, [], 60.0)
    runs = {
        run.data.tags.get("trial_id", "parent"): run
        for run in MlflowClient(tracker.tracking_uri).search_runs([tracker.experiment_id])
    }
    digits, held_out = ("digits", DIGEST[:36], "training"), ("held out", "b", "evaluation")
    assert inputs_of(runs["0"]) == inputs_of(runs["1"]) == [digits, held_out]
    assert inputs_of(runs["2"]) == [("digits", "c", "training")]
    assert inputs_of(runs["parent"]) == [digits, ("digits", "c", "training"), held_out]


def test_a_data_set_of_two_uses_is_one_input_and_its_source_is_told_as_what_it_is():
    both = [TRAINING, {**TRAINING, "use": "evaluation"}, EVALUATION, OTHER]
    first, second, third = to_dataset_inputs(both).values()
    assert [tag.value for tag in first.tags] == ["training, evaluation"]
    assert (first.dataset.source_type, first.dataset.source) == ("http", '{"url": "https://example.org/digits"}')
    assert second.dataset.source_type == "code"
    assert (third.dataset.source_type, third.dataset.source) == ("local", '{"uri": "/data/digits"}')


def test_what_a_trial_named_is_told_from_the_study_too(tmp_path):
    study, store = create_study(tmp_path, RandomSampler, [VAL_SCORE])
    number, _ = study.ask(resolve_space(Config, {}, {}))
    study.record_config(number, {"lr": 0.1})
    study.record_datasets(number, [TRAINING])
    study.report(number, 1, 0.5, {"metrics": {"val/score": 0.5}, "checkpoint": None, "time": 1e9})
    events = build_trial_events(study.get_trial(number), [VAL_SCORE])
    store.close()
    assert [event["kind"] for event in events] == ["started", "data", "reported"]
    assert events[1]["datasets"] == [TRAINING]
