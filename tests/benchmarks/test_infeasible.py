import numpy as np
import pytest

from benchmarks.search.infeasible import FITTING, PROBLEMS, count_octaves, run

BEST = {"inside": (2.5, 1.5), "edge": (0.5 * (FITTING + 2.0), 0.5 * (FITTING - 2.0))}


@pytest.mark.parametrize("name", PROBLEMS)
def test_forty_percent_of_the_space_lacks_memory(name):
    problem, draw = PROBLEMS[name], np.random.default_rng(0)
    lost = [problem.curve(problem.draw(draw), draw).diverges for _ in range(2000)]
    assert np.mean(lost) == pytest.approx(0.4, abs=0.03)


@pytest.mark.parametrize("name", PROBLEMS)
def test_best_config_that_fits_has_no_regret(name):
    problem, (width, batch) = PROBLEMS[name], BEST[name]
    values = {"lr": 10**-2.5, "width": 16 * 2**width, "batch": 8 * 2 ** (batch - 1e-9), "dropout": 0.15}
    curve = problem.curve({**values, "precision": "fp32"}, np.random.default_rng(0))
    assert count_octaves(values) <= FITTING
    assert problem.regret(curve, problem.epochs) == pytest.approx(0.0, abs=1e-6)
    assert not curve.diverges


def test_told_search_loses_fewer_trials():
    lost = {told: run(("edge", "tpe", told, 0)).diverged for told in ("failed", "infeasible")}
    assert lost["infeasible"] < lost["failed"] / 2
