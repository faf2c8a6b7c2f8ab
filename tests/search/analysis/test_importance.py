"""What a search says of its parameters: of known functions, drawn at random."""

import math
import random

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from searchlight.search.analysis.importance import FEWEST, find_importances
from tests.search.reporting.html.page_studies import search, trial

SPACE = {
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "width": IntDistribution(1, 9),
    "kind": CategoricalDistribution(["a", "b", "c"]),
    "noise": FloatDistribution(0.0, 1.0),
}


def drawn(count, score, seed=0, change=lambda params: None):
    """Trials with the score of their parameters; `change` may take one out, or away."""
    draw = random.Random(seed)
    trials = []
    for number in range(count):
        params = {
            "lr": 10 ** draw.uniform(-5, -1),
            "width": draw.randint(1, 9),
            "kind": draw.choice("abc"),
            "noise": draw.random(),
        }
        change(params)
        trials.append(trial(number, scores=[score(params, draw)], params=params, space=SPACE))
    return search(trials)


def by_rate(params, draw):
    return -((math.log10(params["lr"]) + 3) ** 2) + draw.gauss(0, 0.3)


def by_chance(_params, draw):
    return draw.random()


def test_deciding_parameter_is_told_and_noise_is_not():
    found = find_importances(drawn(40, by_rate))
    assert (found.significant_names, found.trials) == (["lr"], 40)
    first, *others = found.each
    assert first.name == "lr"
    assert first.share > 0.4 > found.chance > max(other.share for other in others)
    assert 0 <= max(other.high for other in others) < first.low < first.share < first.high <= 1
    more = find_importances(drawn(80, by_rate)).each[0]
    assert more.high - more.low < 0.7 * (first.high - first.low)


def without(name, kinds):
    """Takes a parameter out of the trials of `kinds`."""

    def change(params):
        if params["kind"] in kinds:
            del params[name]

    return change


@pytest.mark.slow
def test_conditional_parameter_matters_only_where_it_applies():
    """It is not taken for what decides whether it applies."""
    found = find_importances(drawn(60, lambda p, draw: 2.0 * ("noise" in p) + draw.random(), 0, without("noise", "bc")))
    assert found.significant_names == ["kind"]
    scored = drawn(80, lambda p, draw: p.get("noise", 0.5) + 0.1 * draw.random(), 0, without("noise", "c"))
    names = find_importances(scored).significant_names
    assert names[0] == "noise"
    assert not {"lr", "width"} & {*names}


def test_few_trials_constants_and_equal_values_show_nothing():
    found = find_importances(drawn(FEWEST - 1, by_rate))
    assert (found.each, found.trials, found.chance) == ((), FEWEST - 1, None)
    fixed = find_importances(drawn(FEWEST, by_chance, change=lambda params: params.update(lr=1e-3)))
    assert "lr" not in [one.name for one in fixed.each]
    assert find_importances(drawn(30, lambda p, draw: 1.0)).chance is None
    assert find_importances(search([])).chance is None


@pytest.mark.slow
def test_weaker_parameters_are_told_in_their_order():
    found = find_importances(
        drawn(100, lambda p, draw: by_rate(p, draw) + 1.5 * (p["kind"] == "a") + 0.1 * p["width"], seed=1)
    )
    assert found.significant_names[:2] == ["lr", "kind"]
    assert "noise" not in found.significant_names


@pytest.mark.parametrize("seed", range(2))
def test_chance_alone_makes_no_parameter_significant(seed):
    assert find_importances(drawn(30, by_chance, seed)).significant_names == []


@pytest.mark.slow
def test_interaction_counts_for_both_parameters():
    found = find_importances(drawn(100, lambda p, draw: float((p["noise"] > 0.5) == (p["width"] > 4)), seed=1))
    assert sorted(found.significant_names[:2]) == ["noise", "width"]
    assert all(one.share > 0.4 for one in found.each[:2])


@pytest.mark.slow
def test_scale_of_parameter_and_objective_does_not_matter():
    def steeper(params):
        params["noise"] = params["noise"] ** 3

    same = find_importances(drawn(20, by_rate))
    assert find_importances(drawn(20, lambda p, draw: math.exp(by_rate(p, draw)), change=steeper)) == same


def test_stopped_trials_count_by_how_far_they_came():
    """The values alone would say that the kind decides: those of c stop in epoch 1, which has the higher scores."""
    made = drawn(60, by_rate)
    trials = []
    for each in made.trials:
        rate = each.params["lr"]
        good = abs(math.log10(rate) + 3) < 0.7
        scores = [9.0] if not good else [9.0, 5.0 + each.number % 7]
        outcome = "diverged" if rate > 3e-2 else "completed" if good else "pruned"
        trials.append(trial(each.number, outcome, scores, each.params, space=SPACE))
    assert find_importances(search(trials)).significant_names == ["lr"]
