"""The Pareto front, if there are several objectives."""

import math
from collections.abc import Sequence

from optuna.trial import FrozenTrial
from plotly.graph_objects import Figure

from searchlight.search.analysis.best_trials import ParetoTrial, find_pareto_front
from searchlight.search.formatting import format_trials, format_value, pluralize
from searchlight.search.reporting.html import theme
from searchlight.search.reporting.html.template import Section
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import WITH_RESULT, get_outcome, objective_values


def build(record: SearchRecord) -> Section | None:
    """Return the first objective against each other one, or None with one objective or an empty front."""
    if len(record.objectives) == 1:
        return None
    front = find_pareto_front(record.trials, record.objectives)
    if not front:
        return None
    first, *others = record.objectives
    points = [
        (trial, point)
        for trial in record.trials
        if get_outcome(trial) in WITH_RESULT
        and (point := objective_values(trial, record.objectives)) is not None
        and all(map(math.isfinite, point))
    ]
    figures = [
        _build_figure(first.metric, other.metric, index, points, front) for index, other in enumerate(others, start=1)
    ]
    names = list(dict.fromkeys(name for trial in record.trials for name in trial.params))
    by_number = {trial.number: trial for trial in record.trials}
    rows = [["trial", *front[0].values, *names]]
    for trial in front:
        params = by_number[trial.trial_id].params
        cells = [*trial.values.values(), *(params.get(name, "-") for name in names)]
        rows.append([str(trial.trial_id), *map(format_value, cells)])
    return Section("Pareto front", _summary_text(record, points, front), figures, rows)


def _summary_text(
    record: SearchRecord, points: Sequence[tuple[FrozenTrial, Sequence[float]]], front: Sequence[ParetoTrial]
) -> str:
    sentences = [
        f"{len(front)} of {pluralize(len(points), 'trial')} are on the front: no other trial is at least as good "
        f"in all objectives and better in one. Each counts with its best report by {record.objective.metric}."
    ]
    for objective in record.objectives:
        metric = objective.metric
        best = objective.best(trial.values[metric] for trial in front)
        holders = [trial.trial_id for trial in front if trial.values[metric] == best]
        sentences.append(f"{metric} is best in {format_trials(holders)}, {format_value(best)}.")
    return " ".join(sentences)


def _build_figure(
    x: str,
    y: str,
    index: int,
    points: Sequence[tuple[FrozenTrial, Sequence[float]]],
    front: Sequence[ParetoTrial],
) -> Figure:
    on_front = {trial.trial_id for trial in front}
    beaten = [(trial, point) for trial, point in points if trial.number not in on_front]
    ordered = sorted((trial for trial in front if math.isfinite(trial.values[y])), key=lambda trial: trial.values[x])
    others = theme.build_points(
        [(point[0], point[index], trial.number) for trial, point in beaten],
        "beaten",
        {"color": theme.GRAY, "size": 7, "opacity": 0.6},
        "trial %{customdata}<br>%{x:.4~g}, %{y:.4~g}",
    )
    best = theme.build_points(
        [(trial.values[x], trial.values[y], trial.trial_id) for trial in ordered],
        "front",
        {"color": theme.ACCENT, "size": 10},
        "trial %{customdata}, on the front<br>%{x:.4~g}, %{y:.4~g}",
        # With more than two objectives, the front is no line in two dimensions.
        mode="lines+markers" if len(front[0].values) == 2 else "markers",
        line={"color": theme.ACCENT, "width": 2},
    )
    return theme.build_figure(others, best, x=x, y=y)
