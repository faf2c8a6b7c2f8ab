"""What came of a search: the summary, the table of its trials, and the Parquet file of its reports.

python search/report.py NAME [--storage runs]
"""

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if sys.path[0] == str(Path(__file__).resolve().parent):
    # As a script this folder is on the path, and its files would hide libraries and users' modules of their names.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import pyarrow as pa
import pyarrow.parquet as pq
import typer
from optuna.trial import FrozenTrial
from rich.console import Console
from rich.table import Table

from search.divergence import Divergence, find_divergence
from search.errors import UsageError
from search.fidelity import COSTS, cumulated, field, shown
from search.front import pareto_front
from search.nested import flatten
from search.objectives import Objective
from search.schedule import sign
from search.space import Space
from search.study import read
from search.trials import OUTCOMES, best_epoch, best_value, curve_of, outcome_of, point_of, reports_of


@dataclass(frozen=True)
class Best:
    """The best trial: its number, value, config, and the checkpoint of the report that has the value.

    A function may report without one.
    """

    trial_id: int
    value: float
    config: dict[str, Any]
    checkpoint: str | None


@dataclass(frozen=True)
class FrontTrial:
    """A trial on the Pareto front, with all objectives by name as its checkpoint has reached them."""

    trial_id: int
    values: dict[str, float]
    config: dict[str, Any]
    checkpoint: str | None


def count_outcomes(trials: Sequence[FrozenTrial]) -> dict[str, int]:
    """How many trials ended how, in the order of OUTCOMES; outcomes that did not occur are left out."""
    counts = Counter(outcome_of(trial) for trial in trials)
    return {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}


def find_best(trials: Sequence[FrozenTrial], mode: str) -> Best | None:
    """The best of the trials that were completed or pruned."""
    judged = [t for t in trials if outcome_of(t) in ("completed", "pruned") and curve_of(t)]
    if not judged:
        return None
    best = (max if mode == "max" else min)(judged, key=lambda trial: best_value(trial, mode))
    return Best(best.number, best_value(best, mode), best.user_attrs["config"], _best_checkpoint(best, mode))


def find_front(trials: Sequence[FrozenTrial], objectives: Sequence[Objective]) -> list[FrontTrial]:
    """The Pareto front, best by the first objective first."""
    names = [objective.metric for objective in objectives]
    return [
        FrontTrial(
            trial.number,
            dict(zip(names, point_of(trial, objectives) or (), strict=True)),
            trial.user_attrs["config"],
            _best_checkpoint(trial, objectives[0].mode),
        )
        for trial in pareto_front(trials, objectives)
    ]


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


def trial_table(trials: Sequence[FrozenTrial], objectives: Sequence[Objective]) -> Table:
    """The trials, best by the first objective first, with the parameters that were searched.

    With several objectives, those on the Pareto front are marked.
    """
    names = list(dict.fromkeys(name for trial in trials for name in trial.params))
    table = Table(box=None, header_style="bold", pad_edge=False)
    words = {name for name in names if any(isinstance(trial.params.get(name), str) for trial in trials)}
    several = len(objectives) > 1
    front = {trial.number for trial in pareto_front(trials, objectives)} if several else set()
    marks = ["front"] if several else []
    for column in ("trial", "outcome", "epochs", "GPU-s", *marks, *(each.metric for each in objectives), *names):
        table.add_column(column, justify="left" if column in ("outcome", "front", *words) else "right")
    points = {trial.number: point_of(trial, objectives) for trial in trials}
    better = sign(objectives[0].mode)
    for trial in sorted(trials, key=lambda t: better * point[0] if (point := points[t.number]) else math.inf):
        point = points[trial.number]
        values = list(map(short, point)) if point else ["-"] * len(objectives)
        cells = [short(trial.params.get(name, "-")) for name in names]
        mark = ["*" if trial.number in front else ""] * several
        epochs = str(max(curve_of(trial), default=0))
        seconds = max(cumulated(reports_of(trial), "gpu-seconds").values(), default=0.0)
        spent = shown(seconds) if seconds else "-"
        table.add_row(str(trial.number), outcome_of(trial), epochs, spent, *mark, *values, *cells)
    return table


def note_of_search(
    space: Space,
    objectives: Sequence[Objective],
    best: Best | None,
    front: Sequence[FrontTrial] | None,
    divergence: Sequence[Divergence],
) -> str:
    """The Markdown on the parent run in MLflow."""
    lines = "\n".join(f"- diverged: {of_a_precision}" for of_a_precision in divergence)
    diverged = [lines] if lines else []
    if best is None:
        return "\n\n".join(["No trial was completed.", *diverged])
    told = [
        f"**Best {objectives[0].metric}: {short(best.value)}** (trial {best.trial_id})",
        _markdown([("parameter", "value"), *best.config.items()]),
    ]
    if front:
        searched = [parameter.name for parameter in space.parameters]
        rows: list[Sequence[Any]] = [("trial", *objectives, *searched)]
        for trial in front:
            config = flatten(trial.config)
            values = [*trial.values.values(), *(config.get(name, "") for name in searched)]
            rows.append((trial.trial_id, *map(short, values)))
        told += ["**Pareto front**", _markdown(rows)]
    again = "Run it again with `python search/run.py --config search.yaml`; the file is among the artifacts."
    return "\n\n".join([*told, *diverged, again])


def _markdown(rows: Sequence[Sequence[Any]]) -> str:
    """A table; the first row is its head."""
    head, *body = ([str(cell) for cell in row] for row in rows)
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def _best_checkpoint(trial: FrozenTrial, mode: str) -> str | None:
    checkpoint: str | None = reports_of(trial)[best_epoch(trial, mode)]["checkpoint"]
    return checkpoint


def report_console() -> Console:
    """Standard output, as wide as the terminal; in a file or a pipe, as wide as a table may need."""
    return Console() if sys.stdout.isatty() else Console(width=200)


def _of_one_type(values: list[Any]) -> list[Any]:
    """Parquet columns have one type: numbers stay numbers, a mixture becomes text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int, float}:
        return [None if value is None else float(value) for value in values] if float in kinds else values
    return values if len(kinds) == 1 else [None if value is None else str(value) for value in values]


def short(value: Any) -> str:
    """`value` as it is shown to people."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(name: str, storage: Path = Path("runs")) -> None:
    """Print the table of a search and write its Parquet file anew."""
    folder = storage.absolute() / name
    try:
        trials, objectives = read(folder)
    except UsageError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from error
    write_parquet(trials, folder / "trials.parquet")
    console = report_console()
    console.print(trial_table(trials, objectives))
    for divergence in find_divergence(trials):
        console.print(f"diverged: {divergence}", highlight=False, soft_wrap=True)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(main)
    app()
