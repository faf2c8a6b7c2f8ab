"""Problems whose trials are trained for real."""

import math

import numpy as np
import pytest

from benchmarks.search.problems.trained import TRAINED, build_trained


@pytest.mark.parametrize("name", TRAINED)
def test_trial_is_trained_under_the_seed_that_is_drawn(name):
    problem = build_trained(name)
    values = problem.space.get_defaults()
    first, again, other = (problem.curve(values, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first == again
    assert first.values != other.values
    assert len(first.values) == len(first.clean) == problem.epochs
    assert first.values[-1] < first.values[0]
    assert problem.best < first.final < problem.worst


def test_diverged_training_has_no_values_afterwards():
    problem = build_trained("friedman")
    curve = problem.curve({**problem.space.get_defaults(), "lr": 1e6}, np.random.default_rng(0))
    assert math.isnan(curve.values[-1])
    assert curve.diverges
    assert curve.final == math.inf
    assert len(curve.values) == problem.epochs
