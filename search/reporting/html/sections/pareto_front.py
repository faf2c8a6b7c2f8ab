"""The Pareto front, if there are several objectives."""

import math
from collections.abc import Sequence

from optuna.trial import FrozenTrial
from plotly.graph_objects import Figure, Scatter

from search.analysis.best_trials import FrontTrial, find_front
from search.formatting import counted, short
from search.reporting.html import theme
from search.reporting.html.section import Section
from search.study.record import Searched
from search.study.trial import SETTLED, outcome_of, point_of


def section(searched: Searched) -> Section | None:
    """The first objective against each of the others; None if there is one alone, or nothing on the front."""
    if len(searched.objectives) == 1:
        return None
    front = find_front(searched.trials, searched.objectives)
    if not front:
        return None
    first, *others = searched.objectives
    points = [
        (trial, point)
        for trial in searched.trials
        if outcome_of(trial) in SETTLED
        and (point := point_of(trial, searched.objectives)) is not None
        and all(map(math.isfinite, point))
    ]
    figures = [_figure(first.metric, other.metric, place, points, front) for place, other in enumerate(others, start=1)]
    names = list(dict.fromkeys(name for trial in searched.trials for name in trial.params))
    by_number = {trial.number: trial for trial in searched.trials}
    rows = [["trial", *front[0].values, *names]]
    for trial in front:
        params = by_number[trial.trial_id].params
        cells = [*trial.values.values(), *(params.get(name, "-") for name in names)]
        rows.append([str(trial.trial_id), *map(short, cells)])
    return Section("Pareto front", _says(searched, points, front), figures, rows)


def _says(
    searched: Searched, points: Sequence[tuple[FrozenTrial, Sequence[float]]], front: Sequence[FrontTrial]
) -> str:
    told = [f"{counted(len(front), 'trial')} of {len(points)} are beaten by no other one in all objectives."]
    for objective in searched.objectives:
        better = max if objective.mode == "max" else min
        best = better(front, key=lambda trial: trial.values[objective.metric])
        told.append(f"{objective.metric} is best in trial {best.trial_id}, {short(best.values[objective.metric])}.")
    return " ".join(told)


def _figure(
    x: str,
    y: str,
    place: int,
    points: Sequence[tuple[FrozenTrial, Sequence[float]]],
    front: Sequence[FrontTrial],
) -> Figure:
    on_front = {trial.trial_id for trial in front}
    beaten = [(trial, point) for trial, point in points if trial.number not in on_front]
    ordered = sorted((trial for trial in front if math.isfinite(trial.values[y])), key=lambda trial: trial.values[x])
    return theme.figure(
        Scatter(
            x=[point[0] for _, point in beaten],
            y=[point[place] for _, point in beaten],
            customdata=[trial.number for trial, _ in beaten],
            mode="markers",
            name="beaten",
            marker={"color": theme.GRAY, "size": 7, "opacity": 0.6},
            hovertemplate="trial %{customdata}<br>%{x:.4~g}, %{y:.4~g}<extra></extra>",
        ),
        Scatter(
            x=[trial.values[x] for trial in ordered],
            y=[trial.values[y] for trial in ordered],
            customdata=[trial.trial_id for trial in ordered],
            # With more than two objectives the front is no line in any two of them.
            mode="lines+markers" if len(front[0].values) == 2 else "markers",
            name="front",
            line={"color": theme.ACCENT, "width": 2},
            marker={"color": theme.ACCENT, "size": 10},
            hovertemplate="trial %{customdata}, on the front<br>%{x:.4~g}, %{y:.4~g}<extra></extra>",
        ),
        x=x,
        y=y,
    )
