"""The objective against single parameters, and where the best trials lie in each."""

from collections import Counter
from collections.abc import Mapping, Sequence

from optuna.trial import FrozenTrial
from plotly.graph_objects import Figure, Scatter

from search.config.objectives import Mode
from search.formatting import listed, short
from search.reporting.html import theme
from search.reporting.html.axes import Axis, robust
from search.study.record import Searched
from search.study.trial import best_value, curve_of, outcome_of

BEST, FEWEST_BEST = 0.1, 5  # which trials are the best: a tenth, and no fewer
EDGE = 0.1  # of what was searched
OPACITY = {"completed": 0.95, "pruned": 0.4, "diverged": 0.9}


def slice_of(searched: Searched, axis: Axis, places: Mapping[int, float]) -> Figure:
    """Trials that diverged, or are far worse than most, are drawn at the edge where the worst are."""
    trials = [trial for trial in searched.trials if trial.number in places and axis.name in trial.params]
    mode = searched.objectives[0].mode
    ends = _range([best_value(t, mode) for t in trials if outcome_of(t) != "diverged"], mode)
    traces = []
    for outcome in ("pruned", "completed", "diverged"):
        own = [trial for trial in trials if outcome_of(trial) == outcome]
        if own:
            traces.append(_dots(own, outcome, axis, mode, ends))
    best = min(trials, key=lambda trial: places[trial.number])
    traces.append(
        Scatter(
            x=[axis.at(best)],
            y=[_height(best, mode, ends)],
            mode="markers",
            name="best",
            marker={"size": 15, "symbol": "circle-open", "color": theme.INK, "line": {"width": 2.5}},
            hoverinfo="skip",
        )
    )
    figure = theme.figure(*traces, y=searched.objective, half=True)
    return figure.update_xaxes(**axis.layout()).update_yaxes(range=ends)


def where_the_best_lie(searched: Searched, axis: Axis, places: Mapping[int, float]) -> str:
    """In a sentence, and in another one if that is where the search ended."""
    known = [t for t in searched.trials if t.number in places and outcome_of(t) != "diverged"]
    best = sorted(known, key=lambda trial: places[trial.number])[: max(FEWEST_BEST, round(BEST * len(known)))]
    values = [trial.params[axis.name] for trial in best if axis.name in trial.params]
    if not values:
        return f"{axis.name} does not apply to any of the best {len(best)} trials."
    some = (
        f"the best {len(best)}"
        if len(values) == len(best)
        else f"the {len(values)} of the best {len(best)} that have it"
    )
    if axis.choices:
        told = [f"{short(choice)} in {count}" for choice, count in Counter(values).most_common()]
        return f"{axis.name}: of {some} trials, it is {listed(told)}."
    low, high = _about(min(values)), _about(max(values))
    between = f"at {low}" if low == high else f"between {low} and {high}"
    ends = axis.distribution.low, axis.distribution.high
    shares = [axis.share(value) for value in values]
    lower, upper = sum(share <= EDGE for share in shares), sum(share >= 1 - EDGE for share in shares)
    for name, end, there in (("lower", ends[0], lower), ("upper", ends[1], upper)):
        if 2 * there > len(values):
            edge = f"most of them at the {name} end of what was searched, {short(end)}: look beyond it"
            return f"{axis.name}: {some} trials lie {between}, {edge}."
    return f"{axis.name}: {some} trials lie {between}; {short(ends[0])} to {short(ends[1])} was searched."


def _about(value: float) -> str:
    return f"{value:.2g}" if isinstance(value, float) else str(value)


def _range(values: Sequence[float], mode: Mode) -> list[float]:
    found = robust(values, mode)
    if found is not None:
        return found
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    return [low - room, high + room]


def _height(trial: FrozenTrial, mode: Mode, ends: Sequence[float]) -> float:
    worst = ends[1] if mode == "min" else ends[0]
    if outcome_of(trial) == "diverged":
        return worst
    return min(max(best_value(trial, mode), ends[0]), ends[1])


def _dots(trials: Sequence[FrozenTrial], outcome: str, axis: Axis, mode: Mode, ends: Sequence[float]) -> Scatter:
    def told(trial: FrozenTrial) -> str:
        value = short(best_value(trial, mode)) if curve_of(trial) else "no report"
        return f"trial {trial.number}, {outcome}<br>{theme.plain(short(trial.params[axis.name]))}: {value}"

    return Scatter(
        x=[axis.at(trial) for trial in trials],
        y=[_height(trial, mode, ends) for trial in trials],
        text=[told(trial) for trial in trials],
        mode="markers",
        name=outcome,
        cliponaxis=False,
        marker={
            "color": theme.OUTCOME_COLORS[outcome],
            "symbol": theme.SYMBOLS[outcome],
            "size": 8,
            "opacity": OPACITY[outcome],
        },
        hovertemplate="%{text}<extra></extra>",
    )
