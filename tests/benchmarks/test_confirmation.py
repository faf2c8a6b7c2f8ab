"""Searches of simulated problems, with confirming runs and without."""

import numpy as np
import pytest

from benchmarks.search.confirmation import PROBLEMS, Replay, Simulator, compute_gains, simulate


@pytest.mark.parametrize("name", PROBLEMS)
def test_problem_has_unit_spread_and_the_defaults_first(name):
    trials = Simulator(PROBLEMS[name], 1e-9).search(np.random.default_rng(0), 200)
    assert trials.seen == pytest.approx(trials.true, abs=1e-6)
    better = np.mean(trials.true[1:9] <= trials.true[0])  # before a function is searched by steps
    assert better >= 0.5 or PROBLEMS[name].defaults <= 0.5
    if PROBLEMS[name].function is None:
        assert np.std(trials.true) == pytest.approx(1.0, rel=0.25)


def test_shared_noise_moves_all_trials_of_a_search_alike():
    simulator = Simulator(PROBLEMS["normal, seeds shared"], 100.0)
    errors = [
        trials.seen - trials.true for trials in (simulator.search(np.random.default_rng(n), 50) for n in range(50))
    ]
    within, between = np.mean([error.std() for error in errors]), np.std([error.mean() for error in errors])
    assert within == pytest.approx(100 * np.sqrt(0.5), rel=0.15)
    assert between == pytest.approx(100 * np.sqrt(0.5), rel=0.35)


def test_confirmation_picks_the_defaults_less_often_wrongly():
    outcomes = simulate("normal, good defaults", 1.0, 6, 40)
    assert np.mean(compute_gains(outcomes, 0.75) < 0) < np.mean([outcome.worse_without for outcome in outcomes])
    assert simulate("normal, good defaults", 1.0, 6, 3) == outcomes[:3]


def test_replayed_search_and_its_runs_have_different_seeds():
    replay, draw = Replay(30, None), np.random.default_rng(0)
    trials = replay.search(draw, 20)
    runs = [replay.run(draw, trials, 3, replay.draw_shared(draw)) for _ in range(19)]
    assert trials.true[3] == pytest.approx(np.mean([trials.seen[3], *runs])), "each seed once"
    assert len({*trials.rows}) == 20
    assert np.count_nonzero(trials.true[0] < trials.true) >= 5, "the defaults are not among the best"


def test_rounds_of_a_replayed_search_have_different_seeds():
    outcomes = simulate("the best 30", 0.0, 6, 10)
    assert np.mean([covered for outcome in outcomes for covered in outcome.differences_covered]) > 0.5
