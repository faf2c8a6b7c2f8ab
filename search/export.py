"""The reports of all trials as a Parquet file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from optuna.trial import FrozenTrial

from search.fidelity import COSTS, cumulated, field
from search.nested import flatten
from search.trials import outcome_of, reports_of


def write_parquet(trials: Sequence[FrozenTrial], path: Path) -> None:
    """A row per report; a trial that reported nothing has one row, without an epoch.

    `samples` and `gpu_seconds` are what the trial took until that report, its own epochs alone if it is a copy.
    A metric that has the name of a column of ours, as the `epoch` of many functions, is "reported/epoch".
    """
    rows: list[dict[str, Any]] = []
    for trial in trials:
        about = {
            "trial_id": trial.number,
            "outcome": outcome_of(trial),
            "reason": trial.user_attrs.get("reason", ""),
        }
        if about["outcome"] == "diverged" and "divergence" in trial.user_attrs:
            about["divergence"] = trial.user_attrs["divergence"]["kind"]
        if "copied_from" in trial.user_attrs:
            about["copied_from"] = trial.user_attrs["copied_from"]
        config = {f"config/{name}": value for name, value in flatten(trial.user_attrs.get("config", {})).items()}
        reports = reports_of(trial)
        costs = {field(unit): cumulated(reports, unit) for unit in COSTS}
        for epoch, report in reports.items():
            own = {**about, "epoch": epoch, **{name: cost[epoch] for name, cost in costs.items() if name in report}}
            metrics = {f"reported/{name}" if name in own else name: value for name, value in report["metrics"].items()}
            rows.append({**own, **metrics, **config})
        if not reports:
            rows.append({**about, "epoch": None, **config})
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = {name: pa.array(_of_one_type([row.get(name) for row in rows])) for name in columns}
    temporary = path.with_suffix(".tmp")
    pq.write_table(pa.table(table), temporary)
    temporary.replace(path)


def _of_one_type(values: list[Any]) -> list[Any]:
    """Parquet columns have one type: numbers stay numbers, a mixture becomes text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values] if float in kinds else values
    return values if len(kinds) == 1 else [None if value is None else str(value) for value in values]
