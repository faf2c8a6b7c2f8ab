"""All trials as a table."""

from search.analysis.best_trials import sort_by_objective
from search.formatting import format_value, pluralize
from search.reporting.html.section import Section
from search.study.record import SearchRecord
from search.study.trial import get_outcome, intermediate_values, objective_values

MOST = 100


def build(searched: SearchRecord) -> Section | None:
    """Best first; None if none began."""
    if not searched.trials:
        return None
    names = list(dict.fromkeys(name for trial in searched.trials for name in trial.params))
    points = {trial.number: objective_values(trial, searched.objectives) for trial in searched.trials}
    ranked = sort_by_objective(searched.trials, searched.objectives)
    rows = [["trial", "outcome", "epochs", *(objective.metric for objective in searched.objectives), *names]]
    for trial in ranked[:MOST]:
        values = list(map(format_value, points[trial.number] or ["-"] * len(searched.objectives)))
        cells = [format_value(trial.params.get(name, "-")) for name in names]
        rows.append(
            [str(trial.number), get_outcome(trial), str(max(intermediate_values(trial), default=0)), *values, *cells]
        )
    left = len(ranked) - MOST
    notes = f"{pluralize(left, 'trial')} more in trials.parquet, which has every report." if left > 0 else ""
    return Section("All trials", "Best first, by their best report.", table=rows, notes=notes)
