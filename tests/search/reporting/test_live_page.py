"""The page of a search that runs."""

import time

import pytest

from searchlight.search.reporting.html import report
from searchlight.search.reporting.html.report import render_report
from searchlight.search.reporting.live_page import LivePage, render_live
from searchlight.search.steering.command import Answer, Command, LogEntry
from tests.end_to_end.processes import wait_until
from tests.search.reporting.html.page_studies import many


@pytest.fixture
def page(tmp_path, monkeypatch):
    """The page of a search without trials, which is written at once."""
    monkeypatch.setattr(LivePage, "every_s", 0.02)
    made = LivePage(tmp_path, pytest.fail, tmp_path, many(0))
    with made:
        yield made


def test_page_is_written_from_the_first_report_on(page, tmp_path):
    (began, *_) = many(1).trials
    page.on_trial_changed(began)
    file = tmp_path / "report.html"
    assert not file.exists(), "a start alone would load plotly while workers start"
    page.commands = [LogEntry(1, Command("pause", {}, "ann", "lunch"), Answer(True, "paused"))]
    page.on_trial_changed(began)
    wait_until(file.exists)
    assert "the search runs; written at" in file.read_text()
    assert "lunch" in file.read_text()


def test_writing_takes_a_hundredth_of_the_time(page, monkeypatch):
    assert page.share == 0.01
    written = []
    monkeypatch.setattr(page, "write", lambda trials: written.append(time.monotonic()) or burn(0.02))
    trial = many(1).trials[0]
    page.on_trial_changed(trial)
    while len(written) < 2:
        page.on_trial_changed(trial)
        time.sleep(0.005)
    assert written[1] - written[0] >= 2.0


def test_page_that_cannot_be_drawn_is_told_once_and_drawn_later(tmp_path, monkeypatch):
    monkeypatch.setattr(LivePage, "every_s", 0.02)
    monkeypatch.setattr(LivePage, "share", 1e6)
    said, tries, (trial, *_) = [], [], many(1).trials

    def fail_twice(record):
        tries.append(record)
        if len(tries) < 3:
            raise ValueError("no figure")

    monkeypatch.setattr(report, "SECTIONS", (fail_twice,))
    with LivePage(tmp_path, said.append, tmp_path, many(0)) as page:
        page.on_trial_changed(trial)
        page.on_trial_changed(trial)
        wait_until((tmp_path / "report.html").exists)
    assert said == [f"{tmp_path}/report.html cannot be written: ValueError: no figure; the search continues"]


def burn(seconds):
    """Compute for so long."""
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


def test_live_page_leaves_out_what_takes_long():
    search = many(40)
    assert "What mattered" in render_report(search)
    assert "What mattered" not in render_live(search)
    assert 'data-refresh="0"' in render_report(search), "an ended search does not change"
