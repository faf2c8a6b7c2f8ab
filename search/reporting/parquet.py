"""The reports of all trials as a Parquet file."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial

from search.config.fidelity import COSTS, cumulative_cost, report_field
from search.config.flatten import flatten
from search.storage.atomic_file import atomic_path
from search.study.trial import get_outcome, get_reports
from trainables.filesystem.paths import StoragePath

Columns = dict[str, list[Any]]

OURS: dict[str, type] = {  # always there, so that the file of a search keeps its columns and types as it grows
    "trial_id": int,
    "outcome": str,
    "reason": str,
    "divergence": str,
    "copied_from": int,
    "epoch": int,
    **{report_field(unit): float for unit in COSTS},
}
TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


def write_parquet(trials: Sequence[FrozenTrial], path: StoragePath) -> None:
    """A row per report; a trial that reported nothing has one row, without an epoch.

    `samples` and `gpu_seconds` are what the trial took until that report, its own epochs alone if it is a copy.
    A metric that has the name of a column of ours, as the `epoch` of many functions, is "reported/epoch".

    Whoever reads the file meanwhile has the one before.

    Raises:
        OSError: It cannot be written; the one before stays.
    """
    columns: Columns = {name: [] for name in OURS}
    metrics: Columns = {}
    configs: Columns = {}
    rows = 0
    for trial in trials:
        reports = get_reports(trial)
        more = len(reports) or 1
        _extend_columns(columns, _build_trial_columns(trial, reports), rows, more)
        _extend_columns(metrics, _build_metric_columns(reports), rows, more)
        config = flatten(trial.user_attrs.get("config", {}))
        _extend_columns(configs, {f"config/{name}": [value] * more for name, value in config.items()}, rows, more)
        rows += more
    kinds = {**{name: {kind} for name, kind in OURS.items()}, **_infer_param_types(trials)}
    table = {
        name: _to_array(values, kinds.get(name, set())) for name, values in {**columns, **metrics, **configs}.items()
    }
    with atomic_path(path) as file:
        pq.write_table(pa.table(table), file)


def _extend_columns(columns: Columns, of_trial: Mapping[str, Sequence[Any]], rows: int, more: int) -> None:
    """Add what a trial has, `more` values each, to columns of so many `rows`; gaps are None."""
    for name, values in of_trial.items():
        if name not in columns:
            columns[name] = [None] * rows
        columns[name] += values
    for name in columns.keys() - of_trial.keys():
        columns[name] += [None] * more


def _build_trial_columns(trial: FrozenTrial, reports: Mapping[int, Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The columns of ours; those that are the same in each report, and those that grow."""
    more = len(reports) or 1
    outcome = get_outcome(trial)
    divergence = trial.user_attrs.get("divergence", {}).get("kind") if outcome == "diverged" else None
    same = [trial.number, outcome, trial.user_attrs.get("reason", ""), divergence, trial.user_attrs.get("copied_from")]
    about = {name: [value] * more for name, value in zip(OURS, same, strict=False)}
    if reports:
        about["epoch"] = [*reports]
        for unit in COSTS:
            name, spent = report_field(unit), cumulative_cost(reports, unit)
            about[name] = [spent[epoch] if name in report else None for epoch, report in reports.items()]
    return about


def _build_metric_columns(reports: Mapping[int, Mapping[str, Any]]) -> dict[str, list[Any]]:
    told = [report["metrics"] for report in reports.values()]
    names = dict.fromkeys(name for metrics in told for name in metrics)
    return {f"reported/{name}" if name in OURS else name: [metrics.get(name) for metrics in told] for name in names}


def _infer_param_types(trials: Sequence[FrozenTrial]) -> dict[str, set[type]]:
    """What the columns of searched parameters will hold, whatever has come so far."""
    searched: dict[str, BaseDistribution] = {}
    for trial in trials:
        searched.update(trial.distributions)
    return {f"config/{name}": _infer_value_types(distribution) for name, distribution in searched.items()}


def _infer_value_types(distribution: BaseDistribution) -> set[type]:
    if isinstance(distribution, CategoricalDistribution):
        return {type(choice) for choice in distribution.choices}
    return {float} if isinstance(distribution, FloatDistribution) else {int}


def _to_array(values: list[Any], expected: set[type]) -> pa.Array:
    """Parquet columns have one type: numbers stay numbers, a mixture becomes text."""
    kinds = {*map(type, values), *expected} - {type(None)}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if len(kinds) <= 1:
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # a list of a number and a text, or 2**64
            return pa.array(values, TYPES.get(next(iter(kinds), type(None))))
    return pa.array([None if value is None else str(value) for value in values], pa.string())
