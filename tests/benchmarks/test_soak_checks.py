"""The checks of a search under faults find what is lost or counted twice."""

import pytest
from optuna.trial import TrialState, create_trial

from benchmarks.driver.soak_checks import check_curves, check_study, read_curve
from benchmarks.driver.soak_task import Soak, SoakConfig
from searchlight.trainables.training.trainer import train


def make_trial(number, outcome="pruned", epochs=(1, 2), losses=None, config=None):
    reports = {f"report/{epoch}": {"metrics": {"val/loss": (losses or [0.5] * 9)[epoch - 1]}} for epoch in epochs}
    state, value = (TrialState.PRUNED, 0.5) if outcome == "pruned" else (TrialState.FAIL, None)
    trial = create_trial(state=state, value=value, user_attrs={**reports, "outcome": outcome, "config": config or {}})
    trial.number = number
    return trial


@pytest.mark.parametrize(
    "trials",
    [
        [make_trial(0), make_trial(1, "failed")],
        [make_trial(0), make_trial(1, "interrupted")],
        [make_trial(0), make_trial(2)],
        [make_trial(0, epochs=(1, 3))],
    ],
)
def test_study_that_lost_something_is_found(trials):
    check_study([make_trial(0), make_trial(1)])
    with pytest.raises(AssertionError):
        check_study(trials)


def test_curve_that_differs_in_one_bit_is_found():
    config = SoakConfig(lr=0.01, dropout=0.2)
    losses = [report["val/loss"] for report in train(Soak(config), 2)]
    curves = []
    for first in (losses[0], losses[0] * (1 + 2**-50)):
        trial = make_trial(0, losses=[first, losses[1]], config=config.model_dump(mode="json"))
        curves.append(([trial], {0: read_curve(trial)}))
    check_curves(*curves[0], [0])
    with pytest.raises(AssertionError, match="the curve of trial 0 differs"):
        check_curves(*curves[1], [0])
