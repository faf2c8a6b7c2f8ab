"""What mattered, as the page shows it."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from search.analysis.ranking import rank_trials
from search.reporting.html.axes import Axis, build_axes
from search.reporting.html.sections.param_importances import build
from search.reporting.html.sections.slice import build_slice, describe_best_range
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


def sliced(made, name):
    (axis,) = build_axes(made, [name])
    return build_slice(made, axis, rank_trials(made))


def lies(made, name):
    (axis,) = build_axes(made, [name])
    return describe_best_range(made, axis, rank_trials(made))


# The section


def test_what_mattered_is_told_with_its_interval_and_drawn_with_a_slice_each():
    made = build(drawn(60, hill))
    first, *sentences = made.says.split("\n")
    assert first.startswith("From 60 trials: lr mattered most: ")
    assert "Then decay" in first
    assert "Whether kind did anything is not clear: it may be nothing, or chance, which gives up to" in first
    assert [sentence.split()[0] for sentence in sentences] == ["lr:", "decay:"]
    bars, *others = made.figures
    assert list(bars.data[0].y) == ["kind", "decay", "lr"]
    assert [figure.layout.xaxis.title.text for figure in others] == ["lr", "decay"]
    assert [figure.layout.xaxis.type for figure in others] == ["log", None]


def test_where_nothing_can_be_told_that_is_said_and_two_slices_are_shown():
    made = build(drawn(25, chance))
    assert "it cannot be told what mattered" in made.says
    assert len(made.figures) == 3


def test_too_few_trials_are_said_to_be_too_few():
    made = build(drawn(8, hill))
    assert made.says.startswith("Too few trials to tell: 8 can be compared")
    assert not made.figures


def test_a_search_without_parameters_has_no_such_section():
    assert build(search([trial(0, scores=[0.5], params={})])) is None
    assert build(search([])) is None


def test_that_all_trials_are_equal_is_said():
    assert build(drawn(20, lambda p, draw: 1.0)).says.startswith("Nothing can be told: the 20 trials")


# Slices


def test_stopped_trials_are_faded_and_those_that_diverged_lie_at_the_edge_of_the_worst():
    made = search(
        [
            trial(0, scores=[0.5, 0.9], params={"lr": 1e-3}),
            trial(1, "pruned", [0.2], params={"lr": 1e-4}),
            trial(2, "diverged", [0.8], params={"lr": 5e-2}),
            trial(3, "failed", [0.8], params={"lr": 1e-2}),
        ]
    )
    figure = sliced(made, "lr")
    traces = {trace.name: trace for trace in figure.data}
    assert set(traces) == {"completed", "pruned", "diverged", "best"}
    assert traces["pruned"].marker.opacity < 0.5 < traces["completed"].marker.opacity
    low, high = figure.layout.yaxis.range
    assert list(traces["diverged"].y) == [low]
    assert low < 0.2 < 0.9 < high
    assert (traces["best"].x, traces["best"].y) == ((1e-3,), (0.9,))


def test_trials_of_one_choice_lie_beside_each_other_around_it():
    figure = sliced(drawn(30, chance), "kind")
    assert list(figure.layout.xaxis.ticktext) == ["a", "b", "c"]
    dots = figure.data[0]
    for x, text in zip(dots.x, dots.text, strict=True):
        assert "abc"[round(x)] == text.split("<br>")[1][0]
    assert len(set(dots.x)) == 30


def test_what_could_be_markup_is_text():
    made = search([trial(0, scores=[0.5], params={"k": "<b>"}, space={"k": CategoricalDistribution(["<b>", "a"])})])
    assert "&lt;b&gt;" in sliced(made, "k").data[0].text[0]


@pytest.mark.parametrize(
    ("score", "told"),
    [
        (
            lambda rate: -abs(rate + 3),
            "the best 5 trials lie between 0.0008 and 0.0012; 1e-05 to 0.1 was searched.",
        ),
        (lambda rate: rate, "most of them at the upper end of what was searched, 0.1: look beyond it."),
        (lambda rate: -rate, "most of them at the lower end of what was searched, 1e-05: look beyond it."),
    ],
)
def test_it_is_told_where_the_best_lie_and_whether_that_is_the_end_of_what_was_searched(score, told):
    rates = [-5 + 4 * n / 40 for n in range(41)]
    rates = [round(10**rate, 8) for rate in rates if abs(rate + 3) > 0.15]
    rates += [8e-4, 9e-4, 1e-3, 1.1e-3, 1.2e-3]
    made = search([trial(n, scores=[score(math.log10(r))], params={"lr": r}, space=SPACE) for n, r in enumerate(rates)])
    assert told in lies(made, "lr")


def test_of_a_choice_it_is_told_how_many_of_the_best_have_it():
    made = drawn(50, lambda p, draw: 2 * (p["kind"] == "b") + draw.random())
    assert lies(made, "kind") == "kind: of the best 5 trials, it is b in 5."


# Axes


@given(st.floats(1e-6, 1e6), st.floats(1.01, 1e6), st.booleans(), st.floats(0, 1))
def test_a_value_lies_where_its_share_of_what_was_searched_says(low, factor, log, share):
    axis = Axis("x", FloatDistribution(low, low * factor, log=log))
    assert axis.to_share(axis.from_share(share)) == pytest.approx(share, abs=1e-6)
    start, end = axis.build_layout()["range"]
    assert start < (math.log10(low) if log else low) < end


def test_one_number_alone_lies_in_the_middle():
    assert Axis("x", IntDistribution(3, 3)).to_share(3) == 0.5
