import math
import shutil

import pytest
from mlflow.tracking import MlflowClient
from optuna.samplers import RandomSampler, TPESampler
from optuna.trial import TrialState
from pydantic import Field

from searchlight.search.config import load_config
from searchlight.search.errors import UsageError
from searchlight.search.experiment import plan
from searchlight.search.experiment.opening import create_search, open_search
from searchlight.search.experiment.warm_start import (
    PriorTrial,
    SourceTrial,
    as_sampler_trials,
    load_warm_start,
    select_fitting,
)
from searchlight.search.samplers.factory import sampler_factory
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.search.study.study import create_study
from searchlight.search.study.trial import get_outcome
from searchlight.trainables.task import TaskConfig, searchable
from tests.conftest import TASKS
from tests.search.objectives import VAL_LOSS
from tests.search.refusals import problems_of


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    growth: int = searchable(100, low=10, high=1000, when={"precision": "fp16"})
    hidden: int = 16


SPACE = resolve_space(Config, {}, {})
BASE = {"precision": "fp32", "lr": 1e-3, "hidden": 16, "seed": 0}


def found(outcome="completed", values=None, **config):
    return SourceTrial(outcome, {**BASE, **config}, {1: 0.5} if values is None else values)


def always_random(_number):
    return RandomSampler(seed=0)


def test_trial_fits_by_its_searched_values_and_keeps_its_values():
    trials = [
        found("completed", {1: 0.5, 2: 0.3}, lr=1e-2),
        found("pruned", {1: 0.9}, precision="fp16", growth=50),
        found("diverged", {}, lr=9e-2),
        found("interrupted", {1: 0.7}),
    ]
    fitting, why_not = select_fitting(SPACE, trials)
    assert fitting == [
        PriorTrial("completed", {"precision": "fp32", "lr": 1e-2}, {1: 0.5, 2: 0.3}),
        PriorTrial("pruned", {"precision": "fp16", "lr": 1e-3, "growth": 50}, {1: 0.9}),
        PriorTrial("diverged", {"precision": "fp32", "lr": 9e-2}, {}),
        PriorTrial("pruned", {"precision": "fp32", "lr": 1e-3}, {1: 0.7}),
    ]
    assert why_not == []


def test_reasons_of_trials_that_do_not_fit_are_counted():
    without = found()
    del without.config["precision"]
    trials = [found(lr=0.5), found(lr="fast"), without, found(precision="auto"), found("failed")]
    trials += [found("interrupted", {}), found(precision="fp16"), found()]
    fitting, why_not = select_fitting(SPACE, trials)
    assert len(fitting) == 1
    assert why_not == [
        "2 have lr outside 1e-05..0.1:log",
        "1 has no precision",
        "1 has precision outside fp32,bf16,fp16",
        "1 failed",
        "1 reported nothing",
        "1 has no growth",
    ]


def test_values_that_varied_must_equal_what_is_fixed_now():
    space = resolve_space(Config, {"precision": "bf16"}, {})
    fitting, why_not = select_fitting(space, [found(precision=mode) for mode in ("fp32", "bf16", "fp16")])
    assert [trial.point for trial in fitting] == [{"lr": 1e-3}]
    assert why_not == ["2 have precision other than bf16"]
    fitting, why_not = select_fitting(SPACE, [found(hidden=64, seed=1), found(hidden=64, seed=2)])
    assert len(fitting) == 2, "what never varied may be another value now"
    assert why_not == ["all had hidden=64, here 16"]


class Grouped(Config):
    layers: dict[str, int] = Field({"a": 1, "b": 2})
    betas: tuple[float, float] = (0.9, 0.99)


def test_fixed_value_may_be_a_group_or_a_tuple():
    space = resolve_space(Grouped, {}, {})
    alike = found(**{"layers.a": 1, "layers.b": 2, "betas": [0.9, 0.99]})
    of_mlflow = found(**{"layers.a": "1", "layers.b": "2"})
    other = found(**{"layers.a": 1, "layers.b": 3, "betas": [0.9, 0.99]})
    assert select_fitting(space, [alike, of_mlflow])[1] == []
    assert select_fitting(space, [other])[1] == ["all had layers={'a': 1, 'b': 3}, here {'a': 1, 'b': 2}"]
    assert select_fitting(space, [alike, other])[1] == ["1 has layers other than {'a': 1, 'b': 2}"]


def completed(lr=1e-2, values=(0.5,), precision="fp32"):
    return PriorTrial("completed", {"precision": precision, "lr": lr}, dict(enumerate(values, start=1)))


@pytest.fixture
def study_after(tmp_path):
    """Makes a study whose sampler sees earlier trials."""
    stores = []

    def make(earlier, sampler=always_random):
        folder = tmp_path / f"study-{len(stores)}"
        folder.mkdir()
        shown = as_sampler_trials(earlier, SPACE, VAL_LOSS)
        study, store = create_study(folder, sampler, [VAL_LOSS], earlier=shown)
        stores.append(store)
        return study

    yield make
    for store in stores:
        store.close()


def ask_watched(study_after, earlier, kind):
    """Ask for a trial, and return the other trials that a sampler of `kind` was shown."""
    seen = []

    class Watching(kind):
        def infer_relative_search_space(self, study, trial):
            seen.extend(t for t in study.get_trials(deepcopy=False) if t.number != trial.number)
            return super().infer_relative_search_space(study, trial)

    study = study_after(earlier, lambda number: Watching(seed=0))
    assert study.ask(SPACE)[0] == 0
    assert [trial.number for trial in study.get_trials()] == [0]
    return seen


def test_tpe_sees_earlier_trials_as_older(study_after):
    diverged = PriorTrial("diverged", {"precision": "fp32", "lr": 9e-2}, {})
    seen = ask_watched(study_after, [completed(values=(0.5, 0.3, 0.4)), diverged], TPESampler)
    assert [(t.number, t.state, t.params["lr"]) for t in seen] == [
        (-2, TrialState.COMPLETE, 1e-2),
        (-1, TrialState.PRUNED, 9e-2),
    ]
    assert seen[0].value == 0.3
    assert seen[1].constraints == {"diverged": 1.0}


def test_other_samplers_see_earlier_stopped_trials_as_completed(study_after):
    stopped = PriorTrial("pruned", {"precision": "fp32", "lr": 3e-2}, {1: 0.6})
    diverged = PriorTrial("diverged", {"precision": "fp32", "lr": 9e-2}, {})
    seen = ask_watched(study_after, [completed(values=(0.5, 0.3)), stopped, diverged], RandomSampler)
    assert [(t.number, t.state, t.constraints) for t in seen] == [
        (number, TrialState.COMPLETE, {}) for number in (-3, -2, -1)
    ]
    # The stopped one by the change of the other from its epoch on, the diverged one as the worst.
    assert [t.value for t in seen] == pytest.approx([0.3, 0.4, 0.4])


def test_point_of_an_earlier_search_is_tried_if_enqueued(study_after):
    study = study_after([completed()])
    for _ in range(2):
        study.enqueue({"precision": "fp32", "lr": 1e-2})
    assert study.ask(SPACE) == (0, {"precision": "fp32", "lr": 1e-2})
    assert study.ask(SPACE)[1] != {"precision": "fp32", "lr": 1e-2}, "it is enqueued once"


@pytest.mark.parametrize("name", ["tpe", "gp", "cmaes", "qmc", "nsga2", "random"])
def test_every_sampler_works_beside_earlier_trials(study_after, name):
    earlier = [completed(10**-e, [abs(e - 2.0)], "bf16") for e in (2.0, 3.0, 4.5)] * 2
    study = study_after(earlier, sampler_factory(name, 1))
    for expected in range(6):
        number, values = study.ask(SPACE)
        assert number == expected
        study.report(number, 1, values["lr"], {"metrics": {"val/loss": values["lr"]}, "checkpoint": None})
        study.end(number, "completed")
    assert [get_outcome(trial) for trial in study.get_trials()] == ["completed"] * 6


@pytest.fixture
def old(tmp_path):
    """A search of three trials: completed, diverged, failed."""
    folder = tmp_path / "old"
    folder.mkdir()
    (folder / "search.yaml").touch()
    study, lock = create_study(folder, always_random, [VAL_LOSS])
    for outcome, lr in (("completed", 0.02), ("diverged", 0.09), ("failed", 0.01)):
        study.enqueue({"precision": "bf16", "lr": lr})
        number, values = study.ask(SPACE)
        study.record_config(number, SPACE.build_config(values).model_dump(mode="json"))
        if outcome != "failed":
            study.report(number, 1, 0.25, {"metrics": {"val/loss": 0.25}, "checkpoint": None, "time": 0.0})
        study.end(number, outcome)
    lock.close()
    return folder


def test_earlier_search_gives_its_trials_and_its_best_point(old):
    warm = load_warm_start([str(old)], SPACE, VAL_LOSS, "")
    assert [trial.outcome for trial in warm.trials] == ["completed", "diverged"]
    assert warm.best == ({"precision": "bf16", "lr": 0.02},)
    assert warm.lines == ("2 of 3 trials of old fit: 1 failed",)


@pytest.mark.parametrize(
    ("name", "objective", "mode", "line"),
    [
        ("odl", "val/loss", "min", "there is no {folder}/odl. Did you mean 'old'?"),
        ("old", "val/acc", "min", "--warm-start old must have searched for the min of val/acc, but did for the min of "
                                  "val/loss. Leave it out."),
        ("old", "val/loss", "max", "--warm-start old must have searched for the max of val/loss, but did for the min "
                                   "of val/loss. Leave it out."),
    ],
)  # fmt: skip
def test_missing_source_or_other_objective_is_refused(old, name, objective, mode, line):
    problems = problems_of(load_warm_start, [str(old.parent / name)], SPACE, Objective(objective, mode), "")
    assert problems[0].endswith(line.format(folder=old.parent))


def test_sources_of_which_nothing_fits_are_all_refused(old):
    space = resolve_space(Config, {}, {"lr": "1e-5..1e-4"})
    first, _ = problems_of(load_warm_start, [str(old), str(old.parent / "none")], space, VAL_LOSS, "")
    assert first == (
        "--warm-start old must have trials that fit this search, but has none. "
        "0 of 3 trials of old fit: 2 have lr outside 1e-05..0.0001:log, 1 failed."
    )


@pytest.fixture(scope="module")
def store(empty_mlflow_db, tmp_path_factory):
    """Runs of another tool, and two of ours, in the experiment "theirs"."""
    uri = f"sqlite:///{shutil.copy(empty_mlflow_db, tmp_path_factory.mktemp('mlflow'))}"
    client = MlflowClient(uri)
    experiment = client.create_experiment("theirs")

    def run(status, values, tags=None, **params):
        run_id = client.create_run(experiment, tags=tags).info.run_id
        for name, value in params.items():
            client.log_param(run_id, name, value)
        for step, value in values:
            client.log_metric(run_id, "val/loss", value, step=step, timestamp=step)
        client.set_terminated(run_id, status)

    run("FINISHED", [(1000, 0.5), (2000, 0.25)], lr=0.01, precision="bf16")
    run("KILLED", [(1000, 0.75)], lr=0.02, precision="fp32")
    run("FINISHED", [(1000, 0.75), (2000, math.nan)], lr=0.09, precision="fp16", growth=50)
    run("FAILED", [(1000, 0.5)], lr=0.01, precision="fp32")
    run("FINISHED", [], lr=0.01, precision="fp32")
    run("FINISHED", [], tags={"search_id": "parent"}, trials=16, seed=0)
    run("KILLED", [(3, 0.375)], tags={"trial_id": "4", "outcome": "pruned"}, lr=0.03, precision="fp32", hidden=16)
    run("FAILED", [(1, math.inf)], tags={"trial_id": "5", "outcome": "diverged"}, lr=0.08, precision="fp32")
    return uri


def test_runs_of_mlflow_give_their_parameters_and_objective(store):
    warm = load_warm_start(["mlflow:theirs"], SPACE, VAL_LOSS, store)
    assert list(warm.trials) == [
        PriorTrial("completed", {"precision": "bf16", "lr": 0.01}, {1: 0.5, 2: 0.25}),
        PriorTrial("pruned", {"precision": "fp32", "lr": 0.02}, {1: 0.75}),
        PriorTrial("diverged", {"precision": "fp16", "lr": 0.09, "growth": 50}, {1: 0.75}),
        PriorTrial("pruned", {"precision": "fp32", "lr": 0.03}, {3: 0.375}),
        PriorTrial("diverged", {"precision": "fp32", "lr": 0.08}, {}),
    ]
    assert warm.best == ({"precision": "bf16", "lr": 0.01},)
    assert warm.lines == ("5 of 7 trials of mlflow:theirs fit: 1 failed, 1 reported nothing",)


@pytest.mark.parametrize(
    ("name", "objective", "told"),
    [
        ("their", "val/loss", "but there is none of that name. Did you mean 'theirs'?"),
        ("theirs", "val/los", "must have runs with the metric 'val/los', but has none. Did you mean 'val/loss'?"),
    ],
)
def test_missing_experiment_or_metric_is_refused(store, name, objective, told):
    assert problems_of(load_warm_start, [f"mlflow:{name}"], SPACE, Objective(objective, "min"), store)[0].endswith(told)


def test_missing_store_is_refused_and_not_created(tmp_path):
    with pytest.raises(UsageError, match=r"must be in a store that exists, but there is no .*/none\.db"):
        load_warm_start(["mlflow:x"], SPACE, VAL_LOSS, f"sqlite:///{tmp_path}/none.db")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def begun(old, tmp_path):
    """A search that began with `old` and has not tried anything yet: what it is started with, and its folder."""
    task = TASKS / "toy.py"
    given = {"task": f"{task}:Toy", "storage": str(tmp_path), "name": "new", "warm_start": ["old"], "concurrency": "1"}
    planned = plan(load_config({**given, "try": ["lr=0.03"], "search": {"lr": "1e-4..1e-1:log"}}))
    planned.config.local_path.mkdir()
    create_search(planned).store.close()
    return planned


def test_resumed_search_tries_the_same_points_once(begun, old, tmp_path):
    old.rename(tmp_path / "gone")
    _, held = open_search(begun.config.local_path, {})
    asked = [held.study.ask(begun.space)[1] for _ in range(4)]
    held.store.close()
    expected = [("fp32", 0.01), ("fp32", 0.03), ("bf16", 0.02)]
    assert asked[:3] == list(begun.first) == [{"precision": mode, "lr": lr} for mode, lr in expected]
    assert asked[3] not in asked[:3]
    assert not any("warm-start" in note for note in held.notes)


@pytest.mark.parametrize("content", [None, "[{", "[{}]"])
def test_lost_earlier_trials_are_noted_and_the_search_resumes(begun, content):
    path = begun.config.local_path / "warm-start.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    _, held = open_search(begun.config.local_path, {"trials": "20"})
    held.store.close()
    assert "warm-start.json cannot be read: the sampler continues without earlier searches" in held.notes
