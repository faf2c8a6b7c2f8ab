"""All trials as a table."""

from search.analysis.best_trials import by_best
from search.formatting import counted, short
from search.reporting.html.section import Section
from search.study.record import Searched
from search.study.trial import curve_of, outcome_of, point_of

MOST = 100


def section(searched: Searched) -> Section | None:
    """Best first; None if none began."""
    if not searched.trials:
        return None
    names = list(dict.fromkeys(name for trial in searched.trials for name in trial.params))
    points = {trial.number: point_of(trial, searched.objectives) for trial in searched.trials}
    ranked = by_best(searched.trials, searched.objectives)
    rows = [["trial", "outcome", "epochs", *(objective.metric for objective in searched.objectives), *names]]
    for trial in ranked[:MOST]:
        values = list(map(short, points[trial.number] or ["-"] * len(searched.objectives)))
        cells = [short(trial.params.get(name, "-")) for name in names]
        rows.append([str(trial.number), outcome_of(trial), str(max(curve_of(trial), default=0)), *values, *cells])
    left = len(ranked) - MOST
    notes = f"{counted(left, 'trial')} more in trials.parquet, which has every report." if left > 0 else ""
    return Section("All trials", "Best first, by their best report.", table=rows, notes=notes)
