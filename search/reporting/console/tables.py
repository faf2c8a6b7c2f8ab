"""The trials of a search as a table in the terminal."""

import sys
from collections.abc import Mapping, Sequence

from optuna.trial import FrozenTrial
from rich.console import Console
from rich.table import Table
from rich.text import Text

from search.analysis.best_trials import select_pareto_trials, sort_by_objective
from search.config.fidelity import cumulative_cost, format_amount
from search.config.objectives import Objective
from search.formatting import format_value
from search.reporting.console.streams import create_console
from search.study.trial import get_outcome, get_reports, intermediate_values, objective_values

GAP = 2  # between two columns
LONGEST = 16  # of a cell, where the terminal is narrow


def build_trial_table(
    trials: Sequence[FrozenTrial], objectives: Sequence[Objective], width: int | None = None
) -> Table:
    """The trials, best by the first objective first, with as many of the searched parameters as `width` has room for.

    With several objectives, those on the Pareto front are marked.
    """
    points = {trial.number: objective_values(trial, objectives) for trial in trials}
    ranked = sort_by_objective(trials, objectives)
    columns = {
        "trial": [str(trial.number) for trial in ranked],
        "outcome": [get_outcome(trial) for trial in ranked],
        "epochs": [str(max(intermediate_values(trial), default=0)) for trial in ranked],
        "GPU-s": [_format_gpu_seconds(trial) for trial in ranked],
    }
    if len(objectives) > 1:
        front = {trial.number for trial in select_pareto_trials(trials, objectives)}
        columns["front"] = ["*" if trial.number in front else "" for trial in ranked]
    for place, objective in enumerate(objectives):
        reached = [points[trial.number] for trial in ranked]
        columns[objective.metric] = [format_value(point[place]) if point else "-" for point in reached]
    for name in dict.fromkeys(name for trial in trials for name in trial.params):
        columns[name] = [format_value(trial.params.get(name, "-")) for trial in ranked]
    return build_table(columns, width)


def _format_gpu_seconds(trial: FrozenTrial) -> str:
    seconds = max(cumulative_cost(get_reports(trial), "gpu-seconds").values(), default=0.0)
    return format_amount(seconds) if seconds else "-"


def build_comparison_table(rows: Sequence[Sequence[str]]) -> Table:
    """Rows of plain text, the first of which is the head; what they are called stands on the left."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    head, *body = rows
    for place, cell in enumerate(head):
        table.add_column(Text(cell), justify="right" if place else "left")
    for row in body:
        table.add_row(*map(Text, row))
    return table


def create_report_console() -> Console:
    """Standard output, as wide as the terminal; in a file or a pipe, as wide as a table may need."""
    return create_console(sys.stdout, None if sys.stdout.isatty() else 10_000)


def get_table_width(console: Console) -> int | None:
    """How wide a table may be on `console`; None: as wide as it is."""
    return console.width if console.is_terminal else None


def build_table(columns: Mapping[str, Sequence[str]], width: int | None = None) -> Table:
    """A table of `columns` by their head.

    Those that do not fit into `width` are left out, as all of them would be unreadable otherwise: the last ones.
    """
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    fit: list[Sequence[str]] = []
    left = width
    for head, cells in columns.items():
        wide = max(map(len, [head, *cells]))
        if left is not None:
            wide = min(LONGEST, wide)
            if wide > left:
                break
            left -= wide + GAP
        table.add_column(
            Text(head), justify="left" if _has_words(cells) else "right", width=wide, no_wrap=True, overflow="ellipsis"
        )
        fit.append(cells)
    for row in zip(*fit, strict=True):
        table.add_row(*map(Text, row))
    return table


def _has_words(cells: Sequence[str]) -> bool:
    return any(cell[:1].isalpha() and cell not in ("nan", "inf") for cell in cells)
