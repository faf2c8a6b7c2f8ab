import json
import math
import os
import random
import re
from html.parser import HTMLParser

import pytest
from optuna.distributions import CategoricalDistribution

from searchlight.search.formatting import format_command
from searchlight.search.reporting.html.report import (
    LISTED,
    build_trial_table,
    render_report,
    try_write_report,
    write_report,
)
from searchlight.search.reporting.html.template import Section, render_page
from searchlight.search.reporting.html.theme import build_figure, escape_text
from searchlight.search.space.objectives import Objective
from searchlight.search.study.record import SearchRecord
from tests.search.reporting.html.page_studies import many, search, trial

NASTY = "<script>alert(1)</script>"


class Page(HTMLParser):
    """The tags of a page, the text that is seen, its scripts, and the figures in them."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self.scripts, self.inside = [], "", [], ""
        self.feed(html)
        self.figures = json.loads(self.scripts[0])["figures"]

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag

    def handle_endtag(self, tag):
        self.inside = ""

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts.append(data)
        elif self.inside != "style":
            self.text += data


def headings(html):
    return re.findall(r"<h2>(.*?)</h2>", html)


@pytest.fixture(scope="module")
def page():
    return render_report(many(60), "python search/run.py --config runs/night-run/search.yaml")


def test_page_begins_with_the_most_important(page):
    assert headings(page) == [
        "The best trial",
        "Progress",
        "Learning curves",
        "What mattered",
        "Precision",
        "Failed and diverged trials",
        "Where the time went",
        "All trials",
    ]
    text = Page(page).text
    assert "night-run" in text
    assert "my_task.py:MyTask · begun 4 May 2026, 12:00 · 60 trials: " in text
    gain = r"gain over the defaults by epoch 9, one trial each\s*\+0\.\d+ \(\d+ %\)"
    assert re.search(rf"best val/score\s*0\.\d+\s*{gain}\s*trials\s*60", text)
    assert "python search/run.py --config runs/night-run/search.yaml" in text


def test_page_fetches_nothing(page):
    tags = Page(page).tags
    assert not [tag for tag, attributes in tags if tag in ("link", "img", "iframe") or "src" in attributes]
    policies = [a["content"] for tag, a in tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policies[0].startswith("default-src 'none';")


@pytest.mark.slow
def test_page_of_50000_reports_has_less_than_5_mb():
    draw = random.Random(0)
    trials = [trial(number, "completed", [draw.random() for _ in range(25)]) for number in range(2000)]
    assert len(render_report(search(trials))) < 5e6


def test_figures_have_the_colors_of_the_page(page):
    colors = set(re.findall(r'"[\w]*color": "([^"]*)"', json.dumps(Page(page).figures)))
    assert {color for color in colors if not color.startswith("var(--")} <= {"rgba(0,0,0,0)"}
    assert len(colors) > 5


def test_markup_in_names_is_escaped():
    space = {NASTY: CategoricalDistribution([NASTY, "b"])}
    objectives = (Objective(NASTY, "max"), Objective("val/score", "max"))
    trials = [
        trial(n, scores=[0.1, 0.2], params={NASTY: NASTY}, metrics=lambda epoch: {NASTY: 0.5 * epoch}, space=space)
        for n in range(3)
    ]
    broken = trial(3, "failed", params={NASTY: NASTY}, reason=f"ValueError: {NASTY}", space=space)
    record = search([*trials, broken], {NASTY: NASTY}, NASTY, objectives)
    html = render_report(record, f"python search/run.py '{NASTY}'")
    assert NASTY not in html
    parsed = Page(html)
    assert sum(tag == "script" for tag, _ in parsed.tags) == 3
    titles = [drawn["layout"]["xaxis"]["title"]["text"] for drawn in parsed.figures]
    assert escape_text(NASTY) in titles
    assert NASTY not in json.dumps(parsed.figures)


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [trial(0, "interrupted")],
        [trial(0, scores=[0.5])],
        [trial(0, "failed"), trial(1, "failed", reason="x")],
        [trial(0, "diverged", [0.1]), trial(1, "diverged")],
        [trial(0, scores=[1e300, -1e300]), trial(1, "pruned", [0.0])],
        [trial(0, scores=[0.1], metrics=lambda epoch: {"train/loss": math.nan, "time/samples_per_s": math.inf})],
        [trial(0, scores=[0.1] * 3, params={}), trial(1, scores=[0.1] * 3, params={})],
    ],
    ids=["none", "one that runs", "one", "all failed", "all diverged", "extremes", "not finite", "no parameters"],
)
def test_any_search_has_a_page(trials):
    parsed = Page(render_report(search(trials, {"lr": 0.01})))
    assert f"{len(trials)} trial" in parsed.text
    assert "NaN" not in parsed.scripts[0]
    assert "Infinity" not in parsed.scripts[0]


def test_search_without_metadata_has_a_page():
    record = SearchRecord("demo", [trial(0, scores=[0.1])], (Objective("val/score", "max"),), {})
    assert "Progress" in headings(render_report(record))


def test_curve_of_a_copy_begins_where_it_was_copied():
    copied = trial(1, scores=[0.1, 0.2, 0.3, 0.4])
    del copied.intermediate_values[1], copied.intermediate_values[2]
    copied.set_user_attr("copied_from", 0)
    curves = Page(render_report(search([trial(0, "pruned", [0.1, 0.2]), copied]))).figures[2]
    assert [3, 4, None] in [trace["x"] for trace in curves["data"]]


def test_section_has_paragraphs_and_aligned_columns():
    table = [["name", "value"], ["a", "1.5"], ["b", "-"], ["c", "1e-05"]]
    html = render_page("t", "s", [Section("x", "one\ntwo", [build_figure()], table, notes="three\nfour")])
    assert re.findall(r"<p[^>]*>(\w+)</p>", html) == ["s", "one", "two", "three", "four"]
    assert '<th>name</th><th class="number">value</th>' in html


def test_page_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "report.html"
    write_report(many(10), path)
    before = path.read_text()
    (tmp_path / f"report.html.{os.getpid()}.tmp").mkdir()  # it cannot be written to
    with pytest.raises(OSError, match=r"report\.html\.\d+\.tmp"):
        write_report(many(20), path)
    assert path.read_text() == before


def test_page_that_cannot_be_written_is_told_in_a_line(tmp_path):
    told = []
    assert try_write_report(many(10), tmp_path / "report.html", told.append)
    assert not try_write_report(many(10), tmp_path / "gone" / "report.html", told.append)
    (line,) = told
    assert line.startswith(f"{tmp_path / 'gone' / 'report.html'} cannot be written: FileNotFoundError")
    assert line.endswith(f"; {format_command('report')} gone --storage {tmp_path} writes it again")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


def test_long_table_is_cut_with_a_note():
    told = build_trial_table(search([trial(number, scores=[0.1]) for number in range(LISTED + 20)]))
    assert len(told.table) == LISTED + 1
    assert told.notes == "20 trials more in trials.parquet, which contains all reports."
    assert build_trial_table(search([])) is None
