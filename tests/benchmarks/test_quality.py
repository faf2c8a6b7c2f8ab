import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.search.peers import PEERS, find_missing_package
from benchmarks.search.problems import hartmann
from benchmarks.search.problems.problems import Curve, Problem
from benchmarks.search.problems.recorded import list_problems
from benchmarks.search.runs import ALL_SIDES
from benchmarks.search.simulator import SWITCH_S, Incumbent, Job, simulate
from benchmarks.search.strategies import SIDES, EvenBrackets
from searchlight.search.schedulers.hyperband import HyperBandScheduler
from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.task import TaskConfig, searchable

PROBLEMS = {problem.name: problem for problem in list_problems()}
BEST = {
    "hartmann3-good": {"x0": 0.114614, "x1": 0.555649, "x2": 0.852547},
    "hartmann6-good": {f"x{i}": x for i, x in enumerate(hartmann.OPTIMUM6)},
    "cliff": {"lr": 10**-1.8, "reward_scale": 10**0.7, "curriculum": 0.35, "weight_decay": 1e-3, "precision": "bf16"},
    "crossing": {"lr": 10**-1.8, "regularization": 0.8, "width": 10**2.4, "precision": "fp32"},
    "curriculum": {"lr": 1e-2, "easy": 0.3, "pace": 0.4, "reward_scale": 10**0.6, "precision": "fp32"},
    "finetune": {"lr": 10**-4.2, "head_lr": 10**-2.8, "warmup": 0.12, "batch": 32, "dropout": 0.15}
    | {"layers": "half", "precision": "fp16", "scale_log2": 12.0},
    "annealed": {"lr": 10**-0.9, "momentum": 0.9, "schedule": "cosine", "warm": 0.06, "smoothing": 0.1}
    | {"precision": "fp32"},
}


@pytest.mark.parametrize("name", BEST)
def test_best_config_has_no_regret(name):
    problem = PROBLEMS[name]
    curve = problem.curve(BEST[name], np.random.default_rng(0))
    assert not curve.diverges
    assert problem.regret(curve, problem.epochs) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("name", PROBLEMS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_regret_lies_between_the_best_and_a_diverged_config(name, seed):
    problem, draw = PROBLEMS[name], np.random.default_rng(seed)
    curve = problem.curve(problem.draw(draw), draw)
    assert len(curve.values) == problem.epochs
    assert curve.seconds > 0
    for epoch, value in enumerate(curve.values, 1):
        if not math.isnan(value):
            assert -1e-5 <= problem.regret(curve, epoch) <= problem.worst - problem.best


def test_closed_form_diverges_sooner_far_beyond_the_cliff():
    problem, epochs = PROBLEMS["cliff"], []
    for lr in (0.03, 0.1, 1.0):
        curve = problem.curve({**BEST["cliff"], "lr": lr}, np.random.default_rng(0))
        nans = [math.isnan(value) for value in curve.values]
        assert nans == sorted(nans)
        assert curve.final == math.inf
        epochs.append(nans.index(True))
    assert epochs == sorted(epochs, reverse=True)
    assert epochs[0] > epochs[-1]


class FlatConfig(TaskConfig):
    height: float = searchable(0.5, low=0.0, high=1.0)


def flat(values, draw):
    """Above 0.5 it looks best after one epoch, and diverges in the second; an epoch takes 10 s."""
    height = values["height"]
    if height > 0.5:
        return Curve([-height] + [math.nan] * 8, [1.0] * 9, 10.0, math.inf)
    return Curve([height] * 9, [height] * 9, 10.0, height)


FLAT = Problem("flat", False, resolve_space(FlatConfig, {"precision": "fp32"}, {}), 9, 0.0, 1.0, flat)


class Once:
    """Trains one trial to its end."""

    keeps_best = only_whole = False

    def __init__(self, height):
        self.job, self.seen = Job("0", 0, {"height": height}, 0, 9), []

    def suggest(self):
        job, self.job = self.job, None
        return job

    def report(self, job, epoch, value):
        self.seen.append((epoch, value))
        return True


def test_time_passes_as_epochs_take_it():
    side = Once(0.25)
    run = simulate(side, FLAT, gangs=1, budget=SWITCH_S + 35.0, seed=0)
    assert side.seen == [(1, 0.25), (2, 0.25), (3, 0.25)]
    assert run.regrets == [(SWITCH_S + 10.0, 0.25)]
    assert run.regret_at(10.0, before=1.0) == 1.0
    assert run.regret_at(10.2, before=1.0) == 0.25
    assert (run.spent, run.lost, run.whole) == (30.0, 0.0, 0)


def test_suggestions_take_their_time_if_an_epoch_has_seconds():
    free, slow = (simulate(Once(0.25), FLAT, 1, 1000.0, 0, epoch_s) for epoch_s in (None, 1.0))
    assert slow.decisions > 0
    waited = slow.regrets[0][0] - 60 * SWITCH_S - 10.0
    assert 0 < waited <= 60 * slow.decisions
    assert free.regrets[0][0] == SWITCH_S + 10.0


def test_time_of_a_diverged_trial_is_lost():
    run = simulate(Once(0.75), FLAT, gangs=1, budget=1000.0, seed=0)
    assert (run.trials, run.diverged, run.lost) == (1, 1, 90.0)
    assert run.regrets == [(SWITCH_S + 10.0, 1.0)]
    assert run.at_rest == 1.0


OVERFIT = Curve([0.5, 0.2, 0.6], [0.55, 0.25, 0.6], 10.0, 0.6)
CLIFF = Curve([0.1, 0.1, math.nan], [0.15, 0.12, 0.1], 10.0, math.inf)
STEADY = Curve([0.5, 0.4, 0.3], [0.5, 0.4, 0.35], 10.0, 0.35)


def incumbent_after(keeps_best, *curves, epochs=3, delivered="checkpoint", only_whole=False):
    incumbent = Incumbent(replace(FLAT, epochs=3, delivered=delivered), keeps_best, only_whole)
    for trial, curve in enumerate(curves):
        for epoch, value in enumerate(curve.values[:epochs], 1):
            incumbent.record_report(trial, epoch, value, curve)
    return incumbent


WHOLE = {"epochs": 2, "only_whole": True}


@pytest.mark.parametrize(
    ("keeps_best", "curves", "given", "regret"),
    [
        (True, (OVERFIT, STEADY), {}, 0.25),
        (False, (OVERFIT, STEADY), {}, 0.35),
        (True, (OVERFIT, STEADY), {"delivered": "config"}, 0.6),
        (True, (CLIFF, STEADY), {}, 0.35),
        (False, (CLIFF, STEADY), {}, 0.35),
        (True, (CLIFF, STEADY), {"epochs": 2}, 0.15),
        (True, (CLIFF, STEADY), {"epochs": 2, "delivered": "config"}, 0.35),
        (False, (STEADY,), WHOLE, 1.0),
        (False, (STEADY,), {**WHOLE, "epochs": 3}, 0.35),
    ],
)
def test_side_delivers_its_best_or_last_that_will_not_diverge(keeps_best, curves, given, regret):
    assert incumbent_after(keeps_best, *curves, **given).get_regret() == regret


def test_trials_in_training_can_be_left_out():
    incumbent = incumbent_after(True, OVERFIT, STEADY)
    assert incumbent.get_regret(without={0}) == 0.35
    assert incumbent.get_regret(without={0, 1}) == 1.0


def simulated(name, seed, budget):
    return simulate(ALL_SIDES[name](FLAT, seed), FLAT, gangs=8, budget=budget, seed=seed)


# Syne Tune and NePS are not among the requirements, since they install hundreds of MB.
INSTALLED = [name for name in [*SIDES, *PEERS] if not find_missing_package(name)]


@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.filterwarnings("ignore:All-NaN slice")  # Ray, of a rung at which all have diverged
def test_side_is_the_same_for_the_same_seed(name):
    first, second = (simulated(name, 3, 150.0) for _ in range(2))
    assert first.regrets == second.regrets
    assert first.trials == second.trials > 8


def test_searchlight_ends_diverged_trials_sooner_than_tune():
    ours, tune = simulated("asha", 0, 300.0), simulated("tpe", 0, 300.0)
    assert min(ours.diverged, tune.diverged) > 1
    assert ours.lost <= 20.0 * (ours.diverged + 8)
    assert tune.lost >= 90.0 * (tune.diverged - 8)


def test_former_brackets_are_spread_and_have_the_lowest_rung():
    former = EvenBrackets.spread(HyperBandScheduler.from_config(50, 3, 1, "min"))
    assert [bracket.rungs[0] for bracket in former.brackets] == [1, 2, 6, 17, 50]
    brackets = [former.brackets.index(former.get_bracket(number)) for number in range(2000)]
    assert brackets[:9] == [0, 1, 0, 2, 0, 0, 1, 0, 3]
    for place, size in enumerate(former.sizes):
        assert brackets.count(place) == pytest.approx(size / sum(former.sizes) * 2000, abs=2)
