"""The mixture of TPE, changes to the best trial and draws near the defaults."""

import math
import statistics

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState, create_trial

from searchlight.search.errors import UsageError
from searchlight.search.samplers.factory import create_sampler
from searchlight.search.samplers.mixture import Belief, build_beliefs, find_best
from searchlight.search.samplers.predicted_ends import predict_ends
from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.task import TaskConfig, searchable

SPACE = {
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "layers": IntDistribution(1, 9),
    "kind": CategoricalDistribution(["a", "b", "c"]),
}
BELIEFS = {"lr": Belief(1e-3, "medium"), "layers": Belief(2, "medium"), "kind": Belief("b", "medium")}


def make_trial(params, values, state=TrialState.PRUNED):
    value = min(values.values()) if state == TrialState.COMPLETE else None
    return create_trial(state=state, params=params, distributions=SPACE, intermediate_values=values, value=value)


def make_study(trials):
    study = optuna.create_study()
    for params, values, state in trials:
        study.add_trial(make_trial(params, values, state))
    return study


def propose(study, beliefs, numbers):
    """Return a proposal of each of these trials, without adding it."""
    return propose_with(study, {}, numbers, beliefs)


def propose_with(study, running_beliefs, numbers, beliefs=None, name="mixture"):
    """Return the same, with what commands to the running search say."""
    proposals = []
    for number in numbers:
        sampler = create_sampler(name, 0, number, beliefs=beliefs)
        sampler.running_beliefs = running_beliefs
        trial = make_trial({"lr": 1e-3, "layers": 1, "kind": "a"}, {}, TrialState.RUNNING)
        trial.number = 10_000 + number
        sampler.infer_relative_search_space(study, trial)
        proposals.append({name: sampler.sample_independent(study, trial, name, SPACE[name]) for name in SPACE})
    return proposals


def test_first_proposals_are_near_the_defaults_more_often_than_random_ones():
    def count_near(beliefs):
        found = propose(make_study([]), beliefs, range(200))
        assert all(SPACE[name]._contains(SPACE[name].to_internal_repr(each[name])) for each in found for name in SPACE)
        near = sum(abs(math.log10(each["lr"]) + 3) < 1 for each in found)
        return near, sum(each["kind"] == "b" for each in found)

    (near, kept), (random_near, random_kept) = count_near(BELIEFS), count_near({})
    assert near > random_near + 10
    assert kept > random_kept + 10


def test_parameter_without_trust_is_drawn_at_random():
    beliefs = BELIEFS | {"lr": Belief(1e-5, "none")}
    values = [each["lr"] for each in propose(make_study([]), beliefs, range(300))]
    assert math.log10(statistics.median(values)) == pytest.approx(-3, abs=0.4)


def test_more_trust_gives_nearer_values():
    def spread(trust):
        beliefs = {"lr": Belief(1e-3, trust)}
        return statistics.fmean(
            abs(math.log10(each["lr"]) + 3) for each in propose(make_study([]), beliefs, range(300))
        )

    assert spread("high") < spread("medium") < spread("low")


def test_best_trial_is_changed_in_some_parameters():
    good = {"lr": 3e-4, "layers": 7, "kind": "c"}
    others = [({"lr": 1e-2, "layers": 2, "kind": "a"}, {1: 1.0, 3: 0.9}, TrialState.PRUNED)] * 20
    study = make_study([*others, (good, {1: 1.1, 3: 0.2}, TrialState.PRUNED)])
    found = propose(study, {}, range(100))
    kept = [sum(each[name] == good[name] for name in good) for each in found]
    assert sum(count >= 1 for count in kept) > 50
    assert all(each != good for each, count in zip(found, kept, strict=True) if count < 3)


def test_best_trial_is_the_one_that_is_predicted_to_end_best():
    params = {"lr": 1e-3, "layers": 1, "kind": "a"}
    whole = [make_trial(params, {1: 0.9, 3: 0.5 + 0.01 * n, 9: 0.3 + 0.01 * n}, TrialState.COMPLETE) for n in range(4)]
    early = make_trial(params, {1: 0.6})  # 0.4 fall to the end are usual from there
    late = make_trial(params, {1: 0.9, 3: 0.45})
    trials = [*whole, early, late]
    for number, trial in enumerate(trials):
        trial.number = number
    assert find_best(trials, StudyDirection.MINIMIZE) is early
    assert find_best(trials[:3], StudyDirection.MINIMIZE) is None
    assert find_best(trials, StudyDirection.MAXIMIZE) is whole[3]


def test_predicted_end_adds_the_median_change_from_rung_to_rung():
    curves = {"a": {1: 1.0, 3: 0.5}, "b": {1: 2.0, 3: 1.0, 9: 0.8}, "c": {1: 3.0}, "d": {2: 1.0}, "e": {1: math.nan}}
    assert predict_ends(curves, [1, 3, 9]) == pytest.approx({"a": 0.3, "b": 0.8, "c": 3.0 - 0.75 - 0.2})


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True, trust="high")
    width: float = searchable(0.5, low=0.0, high=1.0)


def test_trust_is_what_the_task_declares_unless_the_user_says_otherwise():
    space = resolve_space(Config, {}, {})
    given = build_beliefs(space, {"width": "none"})
    assert (given["lr"], given["width"]) == (Belief(1e-3, "high"), Belief(0.5, "none"))
    assert given["precision"].trust == "none"  # the default is not one of the user
    with pytest.raises(UsageError, match="--trust must name a searched parameter, but got 'wdth'"):
        build_beliefs(space, {"wdth": "high"})


def test_unknown_trust_is_refused():
    with pytest.raises(ValueError, match="trust must be none, low, medium, high, but got 'some'"):
        searchable(1.0, low=0.0, high=1.0, trust="some")
