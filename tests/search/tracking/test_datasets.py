from searchlight.search.config import load_config
from searchlight.search.study.study import create_study
from searchlight.search.tracking.events import build_trial_events
from searchlight.search.tracking.run_content import to_dataset_inputs
from tests.search.objectives import VAL_SCORE
from tests.search.stored_studies import SPACE, always_random
from tests.search.tracking.trackers import finish, runs_of, track

DIGEST = "0123456789abcdef" * 4
TRAINING = {"name": "digits", "digest": DIGEST, "source": "https://example.org/digits", "use": "training"}
EVALUATION = {"name": "held out", "digest": "b", "source": "", "use": "evaluation"}
OTHER = {"name": "digits", "digest": "c", "source": "/data/digits", "use": "training"}


def play(tracker, number, datasets):
    tracker.trials.start(number, {"lr": 0.1}, datasets=datasets)
    tracker.trials.report(number, 1, {"val/score": 0.5}, 1e9)
    tracker.trials.end(number, "completed")


def inputs_of(run):
    return sorted((each.dataset.name, each.dataset.digest, each.tags[0].value) for each in run.inputs.dataset_inputs)


def test_runs_have_their_data_sets_and_the_parent_each_once(tmp_path, mlflow_db):
    settings = load_config({"task": "arc", "name": "one", "storage": str(tmp_path)})
    settings.local_path.mkdir()
    for trials in ([[TRAINING, EVALUATION], [TRAINING, EVALUATION]], [[TRAINING, EVALUATION], None, [OTHER]]):
        tracker = track(settings, search_id="the search")
        for number, datasets in enumerate(trials):
            if datasets is not None:
                play(tracker, number, datasets)
        finish(tracker)
    runs = runs_of(tracker)
    digits, held_out = ("digits", DIGEST[:36], "training"), ("held out", "b", "evaluation")
    assert inputs_of(runs["0"]) == inputs_of(runs["1"]) == [digits, held_out]
    assert inputs_of(runs["2"]) == [("digits", "c", "training")]
    assert inputs_of(runs["parent"]) == [digits, ("digits", "c", "training"), held_out]


def test_data_set_of_two_uses_is_one_input():
    both = [TRAINING, {**TRAINING, "use": "evaluation"}, EVALUATION, OTHER]
    first, second, third = to_dataset_inputs(both).values()
    assert [tag.value for tag in first.tags] == ["training, evaluation"]
    assert (first.dataset.source_type, first.dataset.source) == ("http", '{"url": "https://example.org/digits"}')
    assert second.dataset.source_type == "code"
    assert (third.dataset.source_type, third.dataset.source) == ("local", '{"uri": "/data/digits"}')


def test_study_tells_the_data_sets_of_a_trial(tmp_path):
    study, store = create_study(tmp_path, always_random, [VAL_SCORE])
    number, _ = study.ask(SPACE)
    study.record_config(number, {"lr": 0.1})
    study.record_datasets(number, [TRAINING])
    study.report(number, 1, 0.5, {"metrics": {"val/score": 0.5}, "checkpoint": None, "time": 1e9})
    events = build_trial_events(study.get_trial(number), [VAL_SCORE])
    store.close()
    assert [event["kind"] for event in events] == ["started", "data", "reported"]
    assert events[1]["datasets"] == [TRAINING]
