"""What the trials of a search show of where they diverge."""

import random

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from search.analysis.divergence import Condition, find_divergence

SPACE = {
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "dropout": FloatDistribution(0.0, 0.5),
    "depth": IntDistribution(1, 8),
    "optimizer": CategoricalDistribution(["adam", "sgd", "lion"]),
    "precision": CategoricalDistribution(["fp32", "bf16", "fp16"]),
}


def drawn(count, diverges, seed=0, **space):
    """Trials drawn at random from SPACE, changed by `space`; None takes a parameter out."""
    distributions = {name: space.get(name, own) for name, own in SPACE.items()}
    distributions = {name: own for name, own in distributions.items() if own is not None}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    made = []
    for number in range(count):
        params = study.ask(distributions).params
        attributes = {"outcome": "pruned"}
        if diverges(params):
            attributes = {"outcome": "diverged", "divergence": {"kind": "skips", "epoch": 1 + number % 3}}
        trial = optuna.trial.create_trial(
            state=TrialState.PRUNED, params=params, distributions=distributions, user_attrs=attributes
        )
        trial.number = number
        made.append(trial)
    return made


def conditions(divergence):
    return divergence.region and [(c.parameter, c.relation) for c in divergence.region.conditions]


def test_nothing_is_said_of_a_search_in_which_nothing_diverged():
    assert find_divergence(drawn(20, lambda p: False)) == []
    assert find_divergence([]) == []


def test_the_bound_is_that_between_the_highest_healthy_and_the_lowest_diverged_rate():
    trials = drawn(40, lambda p: p["lr"] >= 2e-3, precision=None)
    (found,) = find_divergence(trials)
    rates = sorted(trial.params["lr"] for trial in trials)
    below, above = max(rate for rate in rates if rate < 2e-3), min(rate for rate in rates if rate >= 2e-3)
    (condition,) = found.region.conditions
    assert (found.precision, condition.parameter, condition.relation) == (None, "lr", ">=")
    assert below < condition.value <= above
    assert float(f"{condition.value:.3g}") == condition.value
    assert found.region.diverged == found.region.trials == found.diverged == sum(rate >= 2e-3 for rate in rates)
    assert (found.region.diverged_elsewhere, found.region.trials_elsewhere) == (0, 40 - found.diverged)


def test_each_precision_has_a_bound_of_its_own():
    limits = {"fp32": 1e-1, "bf16": 1e-2, "fp16": 1e-3}
    trials = drawn(120, lambda p: p["lr"] >= limits[p["precision"]])
    found = {divergence.precision: divergence for divergence in find_divergence(trials)}
    assert set(found) == set(limits)
    assert (found["fp32"].diverged, found["fp32"].region, found["fp32"].kinds) == (0, None, {})
    for precision in ("bf16", "fp16"):
        assert conditions(found[precision]) == [("lr", ">=")]
        assert 0.5 < found[precision].region.conditions[0].value / limits[precision] < 2
    assert sum(divergence.trials for divergence in found.values()) == 120


@pytest.mark.parametrize(
    ("diverges", "expected"),
    [
        (lambda p: p["lr"] < 1e-4, [("lr", "<")]),
        (lambda p: p["depth"] >= 5, [("depth", ">=")]),
        (lambda p: p["optimizer"] == "sgd", [("optimizer", "is")]),
        (lambda p: p["optimizer"] != "sgd", [("optimizer", "is not")]),
        (lambda p: p["lr"] >= 1e-3 and p["optimizer"] == "sgd", [("lr", ">="), ("optimizer", "is")]),
        (lambda p: p["dropout"] < 0.25 and p["lr"] >= 1e-3, [("dropout", "<"), ("lr", ">=")]),
    ],
)
def test_a_region_is_a_range_a_choice_or_two_conditions_together(diverges, expected):
    (found,) = find_divergence(drawn(90, diverges, precision=None))
    assert sorted(conditions(found)) == sorted(expected)
    assert found.region.diverged == found.region.trials
    assert found.region.diverged_elsewhere == 0


def test_a_whole_number_is_bounded_by_one():
    (found,) = find_divergence(drawn(60, lambda p: p["depth"] >= 5, precision=None))
    assert str(found.region.conditions[0]) == "depth >= 5"


def test_a_few_exceptions_do_not_hide_a_region():
    draw = random.Random(0)
    trials = drawn(80, lambda p: (p["lr"] >= 2e-3) != (draw.random() < 0.05), precision=None)
    (found,) = find_divergence(trials)
    assert conditions(found) == [("lr", ">=")]
    assert found.region.diverged / found.region.trials > 0.8


def test_where_chance_alone_decides_next_to_nothing_is_claimed():
    claims = 0
    for seed in range(60):
        draw = random.Random(seed)
        found = find_divergence(drawn(40, lambda p, draw=draw: draw.random() < 0.3, seed, precision=None))
        claims += found[0].region is not None
    assert claims <= 3


def test_two_diverged_trials_show_no_region():
    answers = iter([True, True])
    (found,) = find_divergence(drawn(30, lambda p: next(answers, False), precision=None))
    assert (found.diverged, found.trials, found.region) == (2, 30, None)


def test_precisions_with_few_trials_each_show_a_region_together():
    found = find_divergence(drawn(15, lambda p: p["lr"] >= 2e-3, seed=1))
    assert [divergence.precision for divergence in found] == ["bf16", "fp16", "fp32", None]
    assert conditions(found[-1]) == [("lr", ">=")]
    assert found[-1].trials == 15


def test_the_precision_itself_may_be_the_region():
    found = find_divergence(drawn(30, lambda p: p["precision"] == "fp16"))
    assert [str(condition) for condition in found[-1].region.conditions] == ["precision is fp16"]


def test_failed_and_interrupted_trials_are_not_counted():
    trials = drawn(40, lambda p: p["lr"] >= 2e-3, precision=None)
    for trial in trials[:10]:
        trial.state = TrialState.FAIL
        trial.user_attrs = {"outcome": "failed"}
    del trials[10].user_attrs["outcome"]
    (found,) = find_divergence(trials)
    assert found.trials == 29


def test_it_is_told_in_one_line_with_kinds_and_the_first_epoch():
    trials = drawn(40, lambda p: p["lr"] >= 2e-3, precision=None)
    diverged = [trial for trial in trials if trial.user_attrs["outcome"] == "diverged"]
    diverged[0].user_attrs["divergence"] = {"kind": "objective", "epoch": 2}
    del diverged[1].user_attrs["divergence"]  # told by an earlier version
    (found,) = find_divergence(trials)
    count = len(diverged)
    assert found.kinds == {"skips": count - 2, "objective": 1, "other": 1}
    bound = found.region.conditions[0]
    assert str(found) == (
        f"all {count} of 40, where {bound} ({count} of {count} there, 0 of {40 - count} elsewhere); "
        f"skips {count - 2}, objective 1, other 1; first in epoch 1"
    )


def test_a_parameter_that_only_some_trials_have_is_left_out():
    trials = drawn(40, lambda p: p["lr"] >= 2e-3, precision=None)
    for trial in trials:
        if trial.params["lr"] < 2e-3:
            del trial.params["dropout"]
    (found,) = find_divergence(trials)
    assert conditions(found) == [("lr", ">=")]


@given(
    st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.booleans()), min_size=6, max_size=25),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_what_is_claimed_holds_for_the_trials_as_counted(rows, log):
    """Whatever the numbers are: huge, equal, or next to each other."""
    if log:
        rows = [(abs(value) or 1.0, flag) for value, flag in rows]
    values = [value for value, _ in rows]
    space = {"x": FloatDistribution(min(values), max(values), log=log)}
    trials = []
    for number, (value, diverged) in enumerate(rows):
        attributes = {"outcome": "diverged" if diverged else "pruned"}
        trial = optuna.trial.create_trial(
            state=TrialState.PRUNED, params={"x": value}, distributions=space, user_attrs=attributes
        )
        trial.number = number
        trials.append(trial)
    for found in find_divergence(trials):
        if found.region is not None:
            inside = [flag for value, flag in rows if all(c.is_met({"x": value}) for c in found.region.conditions)]
            assert (sum(inside), len(inside)) == (found.region.diverged, found.region.trials)
            assert found.region.diverged + found.region.diverged_elsewhere == found.diverged


@pytest.mark.parametrize(
    ("condition", "inside", "outside"),
    [
        (Condition("lr", ">=", 0.1), 0.1, 0.09),
        (Condition("lr", "<", 0.1), 0.09, 0.1),
        (Condition("kind", "is", None), None, "a"),
        (Condition("kind", "is not", "a"), None, "a"),
    ],
)
def test_a_condition_holds_at_its_bound_or_choice(condition, inside, outside):
    assert condition.is_met({condition.parameter: inside})
    assert not condition.is_met({condition.parameter: outside})


def test_a_region_may_lie_in_a_parameter_that_only_some_of_the_trials_have():
    trials = drawn(60, lambda p: p["optimizer"] == "sgd" and p["dropout"] >= 0.2, precision=None)
    for trial in trials:
        if trial.params["optimizer"] != "sgd":  # where dropout does not apply
            del trial.params["dropout"], trial.distributions["dropout"]
    (found,) = find_divergence(trials)
    assert conditions(found) == [("optimizer", "is"), ("dropout", ">=")]
    assert found.region.diverged == found.region.trials == found.diverged
    assert found.region.diverged_elsewhere == 0
