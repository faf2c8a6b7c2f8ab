"""The trials of a search as a table in the terminal."""

import math
import sys
from collections.abc import Sequence

from optuna.trial import FrozenTrial
from rich.console import Console
from rich.table import Table

from search.fidelity import cumulated, shown
from search.front import pareto_front
from search.objectives import Objective
from search.schedule import sign
from search.shown import short
from search.trials import curve_of, outcome_of, point_of, reports_of


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


def report_console() -> Console:
    """Standard output, as wide as the terminal; in a file or a pipe, as wide as a table may need."""
    return Console() if sys.stdout.isatty() else Console(width=200)
