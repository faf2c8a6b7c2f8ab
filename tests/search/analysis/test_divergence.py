"""What the trials of a search show of where they diverge."""

import random

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from searchlight.search.analysis.divergence import find_divergence
from searchlight.search.steering.region import Condition

SPACE = {
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "dropout": FloatDistribution(0.0, 0.5),
    "depth": IntDistribution(1, 8),
    "optimizer": CategoricalDistribution(["adam", "sgd", "lion"]),
    "precision": CategoricalDistribution(["fp32", "bf16", "fp16"]),
}


def made(number, params, distributions, diverged):
    attributes = {"outcome": "pruned"}
    if diverged:
        attributes = {"outcome": "diverged", "divergence": {"kind": "skips", "epoch": 1 + number % 3}}
    trial = optuna.trial.create_trial(
        state=TrialState.PRUNED, params=params, distributions=distributions, user_attrs=attributes
    )
    trial.number = number
    return trial


def drawn(count, diverges, seed=0, **space):
    """Trials drawn at random from SPACE, changed by `space`; None takes a parameter out."""
    distributions = {name: space.get(name, own) for name, own in SPACE.items()}
    distributions = {name: own for name, own in distributions.items() if own is not None}
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    points = [study.ask(distributions).params for _ in range(count)]
    return [made(number, params, distributions, diverges(params)) for number, params in enumerate(points)]


def conditions(divergence):
    return divergence.region and [(c.parameter, c.relation) for c in divergence.region.conditions]


def by_rate(params):
    return params["lr"] >= 2e-3


def test_too_little_divergence_shows_no_region():
    assert find_divergence(drawn(20, lambda p: False)) == find_divergence([]) == []
    answers = iter([True, True])
    (found,) = find_divergence(drawn(30, lambda p: next(answers, False), precision=None))
    assert (found.diverged, found.trials, found.region) == (2, 30, None)


def test_region_is_found_despite_exceptions_and_other_trials():
    draw = random.Random(0)
    trials = drawn(80, lambda p: by_rate(p) != (draw.random() < 0.05), precision=None)
    for trial in trials[:10]:
        trial.state = TrialState.FAIL
        trial.user_attrs = {"outcome": "failed"}
    del trials[10].user_attrs["outcome"]
    (found,) = find_divergence(trials)
    assert (found.trials, conditions(found)) == (69, [("lr", ">=")])
    assert found.region.affected / found.region.trials > 0.8


def test_line_has_counts_kinds_and_the_first_epoch():
    trials = drawn(40, by_rate, precision=None)
    for trial in trials:
        if not by_rate(trial.params):
            del trial.params["dropout"]  # a parameter of only some trials is left out
    diverged = [trial for trial in trials if trial.user_attrs["outcome"] == "diverged"]
    diverged[0].user_attrs["divergence"] = {"kind": "objective", "epoch": 2}
    del diverged[1].user_attrs["divergence"]  # told by an earlier version
    (found,) = find_divergence(trials)
    count = len(diverged)
    bound = found.region.conditions[0]
    assert bound.parameter == "lr"
    assert str(found) == (
        f"all {count} of 40, where {bound} ({count} of {count} there, 0 of {40 - count} elsewhere); "
        f"skips {count - 2}, objective 1, other 1; first in epoch 1"
    )


def test_region_may_lie_in_a_conditional_parameter():
    trials = drawn(60, lambda p: p["optimizer"] == "sgd" and p["dropout"] >= 0.2, precision=None)
    for trial in trials:
        if trial.params["optimizer"] != "sgd":  # where dropout does not apply
            del trial.params["dropout"], trial.distributions["dropout"]
    (found,) = find_divergence(trials)
    assert conditions(found) == [("optimizer", "="), ("dropout", ">=")]
    assert found.region.affected == found.region.trials == found.diverged


def test_bound_lies_between_healthy_and_diverged_rates():
    trials = drawn(40, by_rate, precision=None)
    (found,) = find_divergence(trials)
    rates = sorted(trial.params["lr"] for trial in trials)
    below, above = max(rate for rate in rates if rate < 2e-3), min(rate for rate in rates if rate >= 2e-3)
    (condition,) = found.region.conditions
    assert (found.precision, condition.parameter, condition.relation) == (None, "lr", ">=")
    assert below < condition.value <= above
    assert float(f"{condition.value:.3g}") == condition.value
    assert found.region.affected == found.region.trials == found.diverged == sum(rate >= 2e-3 for rate in rates)
    assert (found.region.affected_elsewhere, found.region.trials_elsewhere) == (0, 40 - found.diverged)


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


REGIONS = {
    "lr <": lambda p: p["lr"] < 1e-4,
    "depth >=": lambda p: p["depth"] >= 5,
    "optimizer =": lambda p: p["optimizer"] == "sgd",
    "optimizer !=": lambda p: p["optimizer"] != "sgd",
    "lr >= and optimizer =": lambda p: p["lr"] >= 1e-3 and p["optimizer"] == "sgd",
    "dropout < and lr >=": lambda p: p["dropout"] < 0.25 and p["lr"] >= 1e-3,
}


@pytest.mark.parametrize("expected", REGIONS)
def test_region_is_a_range_a_choice_or_two_conditions(expected):
    (found,) = find_divergence(drawn(90, REGIONS[expected], precision=None))
    assert " and ".join(sorted(map(" ".join, conditions(found)))) == expected
    assert found.region.affected == found.region.trials
    assert found.region.affected_elsewhere == 0
    if expected == "depth >=":
        assert str(found.region.conditions[0]) == "depth >= 5", "a whole number is bounded by one"


def test_chance_alone_claims_next_to_nothing():
    claims = 0
    for seed in range(40):
        draw = random.Random(seed)
        found = find_divergence(drawn(40, lambda p, draw=draw: draw.random() < 0.3, seed, precision=None))
        claims += found[0].region is not None
    assert claims <= 2


@pytest.mark.parametrize(
    ("count", "seed", "diverges", "expected"),
    [(15, 1, by_rate, ("lr", ">=")), (30, 0, lambda p: p["precision"] == "fp16", ("precision", "="))],
    ids=["few trials each", "precision itself"],
)
def test_precisions_may_show_a_region_together(count, seed, diverges, expected):
    found = find_divergence(drawn(count, diverges, seed))
    assert [divergence.precision for divergence in found] == ["bf16", "fp16", "fp32", None]
    assert conditions(found[-1]) == [expected]
    assert found[-1].trials == count


@given(
    st.lists(st.tuples(st.floats(allow_nan=False, allow_infinity=False), st.booleans()), min_size=6, max_size=25),
    st.booleans(),
)
@settings(max_examples=40)
def test_claimed_region_holds_for_the_trials_as_counted(rows, log):
    """Whatever the numbers are: huge, equal, or next to each other."""
    if log:
        rows = [(abs(value) or 1.0, flag) for value, flag in rows]
    values = [value for value, _ in rows]
    space = {"x": FloatDistribution(min(values), max(values), log=log)}
    trials = [made(number, {"x": value}, space, flag) for number, (value, flag) in enumerate(rows)]
    for found in find_divergence(trials):
        if found.region is not None:
            inside = [flag for value, flag in rows if all(c.holds({"x": value}) for c in found.region.conditions)]
            assert (sum(inside), len(inside)) == (found.region.affected, found.region.trials)
            assert found.region.affected + found.region.affected_elsewhere == found.diverged


@pytest.mark.parametrize(
    ("condition", "inside", "outside"),
    [
        (Condition("lr", ">=", 0.1), 0.1, 0.09),
        (Condition("lr", "<", 0.1), 0.09, 0.1),
        (Condition("kind", "=", None), None, "a"),
        (Condition("kind", "!=", "a"), None, "a"),
    ],
)
def test_condition_holds_at_its_bound_or_choice(condition, inside, outside):
    assert condition.holds({condition.parameter: inside})
    assert not condition.holds({condition.parameter: outside})
