import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from searchlight.search.analysis.ranking import rank_trials
from searchlight.search.reporting.html.axes import Axis, build_axes
from searchlight.search.reporting.html.sections.param_importances import build, build_slice, describe_best_range
from tests.search.reporting.html.page_studies import search, trial

SPACE = {
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "decay": FloatDistribution(0.0, 1.0),
    "kind": CategoricalDistribution(["a", "b", "c"]),
}


def drawn(count, score, seed=0):
    draw = random.Random(seed)
    points = [
        {"lr": 10 ** draw.uniform(-5, -1), "decay": draw.random(), "kind": draw.choice("abc")} for _ in range(count)
    ]
    return search([trial(n, scores=[score(p, draw)], params=p, space=SPACE) for n, p in enumerate(points)])


def hill(params, draw):
    return -((math.log10(params["lr"]) + 3) ** 2) - 8 * (params["decay"] - 0.3) ** 2 + draw.gauss(0, 0.1)


def chance(_params, draw):
    return draw.random()


def shown(function, made, name):
    (axis,) = build_axes(made, [name])
    return function(made, axis, rank_trials(made))


def test_important_parameters_are_told_and_drawn():
    made = build(drawn(60, hill))
    first, *sentences = made.says.split("\n")
    told = "From 60 trials: lr and decay mattered. The share of the differences that each explains: lr 48 % (30 %"
    assert first.startswith(told)
    assert "decay 27 % (15 % to 40 %). Where two of these intervals overlap, the order may be chance." in first
    assert "Whether kind had an effect is not clear: chance alone gives up to" in first
    assert [sentence.split()[0] for sentence in sentences] == ["lr:", "decay:"]
    bars, *others = made.figures
    assert list(bars.data[0].y) == ["kind", "decay", "lr"]
    assert [figure.layout.xaxis.title.text for figure in others] == ["lr", "decay"]
    assert [figure.layout.xaxis.type for figure in others] == ["log", None]


def test_unclear_importances_are_told_as_such():
    unclear = build(drawn(25, chance))
    assert "it is unclear what mattered" in unclear.says
    assert len(unclear.figures) == 3
    few = build(drawn(8, hill))
    assert few.says.startswith("Too few trials: 8 can be compared")
    assert not few.figures
    assert build(drawn(20, lambda p, draw: 1.0)).says.startswith("No importance can be computed: the 20 trials")


def test_search_without_parameters_has_no_section():
    assert build(search([trial(0, scores=[0.5], params={})])) is None
    assert build(search([])) is None


def test_slice_fades_pruned_and_puts_diverged_at_the_edge():
    made = search(
        [
            trial(0, scores=[0.5, 0.9], params={"lr": 1e-3}),
            trial(1, "pruned", [0.2], params={"lr": 1e-4}),
            trial(2, "diverged", [0.8], params={"lr": 5e-2}),
            trial(3, "failed", [0.8], params={"lr": 1e-2}),
        ]
    )
    figure = shown(build_slice, made, "lr")
    traces = {trace.name: trace for trace in figure.data}
    assert set(traces) == {"completed", "pruned", "diverged", "best"}
    assert traces["pruned"].marker.opacity < 0.5 < traces["completed"].marker.opacity
    low, high = figure.layout.yaxis.range
    assert list(traces["diverged"].y) == [low]
    assert low < 0.2 < 0.9 < high
    assert (traces["best"].x, traces["best"].y) == ((1e-3,), (0.9,))


def test_trials_of_one_choice_lie_beside_each_other():
    figure = shown(build_slice, drawn(30, chance), "kind")
    assert list(figure.layout.xaxis.ticktext) == ["a", "b", "c"]
    dots = figure.data[0]
    for x, text in zip(dots.x, dots.customdata, strict=True):
        assert "abc"[round(x)] == text.split("<br>")[1][0]
    assert len(set(dots.x)) == 30


def test_markup_in_a_choice_is_escaped():
    made = search([trial(0, scores=[0.5], params={"k": "<b>"}, space={"k": CategoricalDistribution(["<b>", "a"])})])
    assert "&lt;b&gt;" in shown(build_slice, made, "k").data[0].customdata[0]


@pytest.mark.parametrize(
    ("best", "told"),
    [
        (-3, "the best 5 trials lie between 0.0008 and 0.0012; 1e-05 to 0.1 was searched."),
        (-1, "most of them at the upper end of the range, 0.1: search beyond it."),
        (-5, "most of them at the lower end of the range, 1e-05: search beyond it."),
    ],
)
def test_range_of_the_best_trials_is_told(best, told):
    rates = [round(10 ** (-5 + 4 * n / 40), 8) for n in range(41) if abs(-2 + 4 * n / 40) > 0.15]
    rates += [8e-4, 9e-4, 1e-3, 1.1e-3, 1.2e-3]
    scores = [-abs(math.log10(rate) - best) for rate in rates]
    made = search([trial(n, scores=[score], params={"lr": rates[n]}, space=SPACE) for n, score in enumerate(scores)])
    assert told in shown(describe_best_range, made, "lr")


def test_most_frequent_choice_of_the_best_trials_is_told():
    made = drawn(50, lambda p, draw: 2 * (p["kind"] == "b") + draw.random())
    assert shown(describe_best_range, made, "kind") == "kind: of the best 5 trials, it is b in 5."


@settings(max_examples=50)
@given(st.floats(1e-6, 1e6), st.floats(1.01, 1e6), st.booleans(), st.floats(0, 1))
def test_share_of_an_axis_round_trips(low, factor, log, share):
    axis = Axis("x", FloatDistribution(low, low * factor, log=log))
    assert axis.to_share(axis.from_share(share)) == pytest.approx(share, abs=1e-6)
    start, end = axis.build_layout()["range"]
    assert start < (math.log10(low) if log else low) < end


def test_single_number_lies_in_the_middle():
    assert Axis("x", IntDistribution(3, 3)).to_share(3) == 0.5
