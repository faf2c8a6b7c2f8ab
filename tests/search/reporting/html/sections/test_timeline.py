from dataclasses import replace

import pytest

from searchlight.search.reporting.html.sections.timeline import MOST_BARS, build
from tests.search.reporting.html.page_studies import many, search, trial


def test_each_gang_has_a_row_and_shares_of_time_are_told():
    trials = [
        trial(0, scores=[0.1, 0.2], gang="a"),
        trial(1, scores=[0.1, 0.2], began=25.0, gang="a"),
        trial(2, scores=[0.1, 0.2, 0.3, 0.4], began=3.0, gang="b"),
    ]
    told = build(search(trials))
    assert told.says.startswith("2 gangs trained in 94 % of the 1:25 that they held their workers, summed over gangs;")
    assert told.says.endswith("0 % went into the start of workers and trials, 6 % into waiting.")
    (figure,) = told.figures
    bars = {bar.name: bar for bar in figure.data}
    assert set(bars) == {"training", "waiting"}
    assert (list(bars["waiting"].y), list(bars["waiting"].base), list(bars["waiting"].x)) == (["gang 1"], [20], [5])
    assert sum(bars["training"].x) == pytest.approx(80)
    assert list(figure.layout.yaxis.categoryarray) == ["gang 1", "gang 2"]


def test_time_of_confirming_runs_is_no_waiting():
    trials = [trial(0, scores=[0.1], gang="a"), trial(2, scores=[0.1], began=20.0, gang="a")]
    record = replace(search(trials), confirming_runs=[trial(1, scores=[0.1], began=10.0, gang="a")])
    assert build(record).says.startswith("1 gang trained in 100 % of the 0:30 ")


def test_pause_has_no_width():
    (figure,) = build(many(40, gangs=2)).figures
    assert len(figure.layout.shapes) == 1
    assert max(base + length for bar in figure.data for base, length in zip(bar.base, bar.x, strict=True)) < 3600


def test_many_gangs_fit_a_page_and_none_has_no_section():
    (figure,) = build(search([trial(n, scores=[0.1], gang=f"g{n}") for n in range(200)])).figures
    assert figure.layout.height <= 1000
    assert build(search([trial(0, scores=[0.1])])) is None


def test_short_spans_are_drawn_with_their_neighbors():
    trials = [trial(n, scores=[0.1] * 100, began=1000.0 * n, epoch_s=9.0, gang=f"g{n % 2}") for n in range(120)]
    told = build(search(trials))
    assert told.says.startswith("2 gangs trained in 45 % of the ")
    bars = {bar.name: bar for bar in told.figures[0].data}
    assert 120 + 118 <= sum(len(bar.x) for bar in bars.values()) <= MOST_BARS
    assert sum(bars["training"].x) == pytest.approx(120 * 900, rel=0.01)
    assert sum(bars["waiting"].x) == pytest.approx(118 * 1100, rel=0.01)
    assert {bar for bar in bars["training"].customdata if "trial 7," in bar}
