"""Linear models of a series, the baselines of a trained model."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]

ORDER = 8  # past steps that a linear model uses


class Series(NamedTuple):
    """N sequences: inputs (N, T, F), next values (N, T, K), and the duration of each step (N, T, 1)."""

    inputs: Values
    targets: Values
    dt: Values


def compute_squared_errors(train: Series, test: Series) -> dict[str, float]:
    """Return mean squared errors on `test` over all steps, in squared units of the targets.

    Returns:
        "repeat": predicts the last values, if inputs and targets have the same shape. "ar": least squares on `train`,
        linear in the last 8 steps (zeros before the first) and a constant. "ar_dt": also linear in the products of
            these
        with the time step, so that the slope is scaled by the step.
    """
    errors = {}
    if test.inputs.shape == test.targets.shape:
        errors["repeat"] = float(np.square(test.inputs - test.targets, dtype=np.float64).mean())
    for name, with_dt in (("ar", False), ("ar_dt", True)):
        seen, asked = _build_regressors(train, with_dt), _build_regressors(test, with_dt)
        weights, *_ = np.linalg.lstsq(seen, train.targets.reshape(len(seen), -1), rcond=None)
        errors[name] = float(np.square(asked @ weights - test.targets.reshape(len(asked), -1)).mean())
    return errors


def _build_regressors(series: Series, with_dt: bool) -> NDArray[np.float64]:
    """Return a row for each step of each sequence: its last values, the latest first, and a one."""
    inputs = series.inputs.astype(np.float64)
    lags = [np.pad(inputs, ((0, 0), (lag, 0), (0, 0)))[:, : inputs.shape[1]] for lag in range(ORDER)]
    rows = np.concatenate([*lags, np.ones_like(inputs[..., :1])], axis=-1)
    if with_dt:
        rows = np.concatenate([rows, rows * series.dt], axis=-1)
    return rows.reshape(-1, rows.shape[-1])
