"""What linear models can make of a series: the baselines that a trained model has to beat."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float32]

ORDER = 8  # steps that a linear model looks back


class Series(NamedTuple):
    """N sequences: inputs (N, T, F), the values that follow (N, T, K), and how long each step lasts (N, T, 1)."""

    inputs: Values
    targets: Values
    dt: Values


def squared_errors(train: Series, test: Series) -> dict[str, float]:
    """Mean squared errors on `test` over all of its steps, in units of the targets squared.

    Returns:
        "repeat": the next values are the last ones, where there are as many; "ar": least squares on `train`, linear in
        the last 8 steps (zeros before the first) and a constant; "ar_dt": linear in the products of these with the
        time step too, so that the slope reaches as far as the step does.
    """
    errors = {}
    if test.inputs.shape == test.targets.shape:
        errors["repeat"] = float(np.square(test.inputs - test.targets, dtype=np.float64).mean())
    for name, with_dt in (("ar", False), ("ar_dt", True)):
        seen, asked = _regressors(train, with_dt), _regressors(test, with_dt)
        weights, *_ = np.linalg.lstsq(seen, train.targets.reshape(len(seen), -1), rcond=None)
        errors[name] = float(np.square(asked @ weights - test.targets.reshape(len(asked), -1)).mean())
    return errors


def _regressors(series: Series, with_dt: bool) -> NDArray[np.float64]:
    """One row for each step of each sequence: its last values, the latest first, and a one."""
    inputs = series.inputs.astype(np.float64)
    lags = [np.pad(inputs, ((0, 0), (lag, 0), (0, 0)))[:, : inputs.shape[1]] for lag in range(ORDER)]
    rows = np.concatenate([*lags, np.ones_like(inputs[..., :1])], axis=-1)
    if with_dt:
        rows = np.concatenate([rows, rows * series.dt], axis=-1)
    return rows.reshape(-1, rows.shape[-1])
