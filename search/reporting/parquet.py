"""Writes the reports of all trials as a Parquet file, at once or while a search runs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import FrozenTrial

from searchlight.search.formatting import report_command
from searchlight.search.reporting.file_callback import FileCallback
from searchlight.search.space.fidelity import COSTS, cumulative_cost, report_field
from searchlight.search.study.trial import describe_micro_batches, get_outcome, get_reports, is_confirming
from searchlight.trainables.filesystem.atomic_file import atomic_path
from searchlight.trainables.filesystem.paths import StoragePath
from searchlight.trainables.flatten import flatten

FILE = "trials.parquet"
OURS: dict[str, type] = {  # always present, so that columns and types do not change during a search
    "trial_id": int,
    "purpose": str,
    "outcome": str,
    "reason": str,
    "divergence": str,
    "copied_from": int,
    "micro_batches": str,
    "epoch": int,
    **{report_field(unit): float for unit in COSTS},
}
TYPES = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


def write_parquet(trials: Sequence[FrozenTrial], path: StoragePath) -> None:
    """Write a row per report. A trial without a report has one row, without an epoch.

    `samples` and `gpu_seconds` are cumulative. A copied trial counts only its own epochs. A metric with the name of one
    of our columns, such as the `epoch` of many functions, becomes "reported/epoch". The file is replaced atomically.

    Raises:
        OSError: The file cannot be written. The previous file stays.
    """
    ours, metrics, configs = _Columns(OURS), _Columns(), _Columns()
    for trial in trials:
        reports = get_reports(trial)
        config = {f"config/{name}": value for name, value in flatten(trial.user_attrs.get("config", {})).items()}
        for row in _generate_rows(trial, reports):
            ours.add(row)
            metrics.add(_rename_metrics(reports[row["epoch"]]["metrics"]) if reports else {})
            configs.add(config)
    types = {**{name: {kind} for name, kind in OURS.items()}, **_infer_param_types(trials)}
    table: dict[str, pa.Array] = {}
    for columns in (ours, metrics, configs):
        table |= {name: _to_array(values, types.get(name, set())) for name, values in columns.pop_all()}
    with atomic_path(path) as file:
        pq.write_table(pa.table(table), file)


class _Columns:
    """The columns of rows that are added one after the other. A dict per row would take five times as much memory.

    Args:
        names: Of columns that are also there if no row has them, and before all others.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._values: dict[str, list[Any]] = {name: [] for name in names}
        self._count = 0

    def add(self, row: Mapping[str, Any]) -> None:
        for name, value in row.items():
            column = self._values.setdefault(name, [])
            column += [None] * (self._count - len(column))
            column.append(value)
        self._count += 1

    def pop_all(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield each name with its values, and None where a row had none."""
        for name in list(self._values):
            column = self._values.pop(name)
            yield name, column + [None] * (self._count - len(column))


def _generate_rows(trial: FrozenTrial, reports: Mapping[int, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield our columns of each report of `trial`, or of the trial if it has none."""
    outcome, attributes = get_outcome(trial), trial.user_attrs
    row = {
        "trial_id": trial.number,
        "purpose": "confirm" if is_confirming(trial) else "search",
        "outcome": outcome,
        "reason": attributes.get("reason", ""),
        "divergence": attributes.get("divergence", {}).get("kind") if outcome == "diverged" else None,
        "copied_from": attributes.get("copied_from"),
        "micro_batches": describe_micro_batches(trial) or None,
    }
    costs = {report_field(unit): cumulative_cost(reports, unit) for unit in COSTS}
    for epoch, report in reports.items():
        yield {**row, "epoch": epoch, **{name: spent[epoch] for name, spent in costs.items() if name in report}}
    if not reports:
        yield row


def _rename_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    return {f"reported/{name}" if name in OURS else name: value for name, value in metrics.items()}


def _infer_param_types(trials: Sequence[FrozenTrial]) -> dict[str, set[type]]:
    """Return the possible types of the columns of searched parameters."""
    distributions: dict[str, BaseDistribution] = {}
    for trial in trials:
        distributions.update(trial.distributions)
    return {f"config/{name}": _infer_value_types(distribution) for name, distribution in distributions.items()}


def _infer_value_types(distribution: BaseDistribution) -> set[type]:
    if isinstance(distribution, CategoricalDistribution):
        return {type(choice) for choice in distribution.choices}
    return {float} if isinstance(distribution, FloatDistribution) else {int}


def _to_array(values: list[Any], expected: set[type]) -> pa.Array:
    """Return a column of one type: numbers stay numbers, mixed types become text."""
    kinds = {*map(type, values), *expected} - {type(None)}
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if len(kinds) <= 1:
        with suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # e.g. a mixed list, or 2**64
            return pa.array(values, TYPES.get(next(iter(kinds), type(None))))
    return pa.array([None if value is None else str(value) for value in values], pa.string())


class ParquetCallback(FileCallback):
    """Writes new reports to trials.parquet."""

    file, every_s, share = FILE, 3.0, 0.02

    def prepare(self) -> None:
        pa.array([0.0])  # imports pandas

    def write(self, trials: Sequence[FrozenTrial]) -> None:
        try:
            write_parquet(trials, self._path)
        except pa.ArrowException as error:  # e.g. a value without a Parquet type
            raise OSError(str(error)) from error

    def close(self) -> None:
        if self._changed.is_set():
            self._write(f"{report_command(self._place)} writes it again")
