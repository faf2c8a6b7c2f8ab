import shutil
from types import SimpleNamespace

import pytest

from search.analysis.result import SearchResult
from search.reporting.console.summary import view_instructions
from search.reporting.html.report import write_report
from search.study.record import load_search
from search.tracking.description import render_description
from search.tracking.events import make_search_end
from tests.search.stored_studies import Search
from tests.search.tracking.trackers import runs_of, track
from tests.servers.mlflow import MlflowServer

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("chromium")]  # first: without it, no server is started
CURVES = [[0.1, 0.2, 0.3], [0.15, 0.35], [0.05], [0.3, 0.4, 0.6]]
OUTCOMES = ["completed", "pruned", "diverged", "completed"]


@pytest.fixture(scope="module")
def told(tmp_path_factory, empty_mlflow_db):
    """Where MLflow has a search of four trials, of which it was told as a driver does; the runs by name."""
    folder = tmp_path_factory.mktemp("ui")
    shutil.copy(empty_mlflow_db, folder / "server.db")
    server = MlflowServer(folder).start()
    try:
        yield tell(Search(folder / "runs"), server.url)
    finally:
        server.stop()


def tell(search, url):
    for curve, outcome in zip(CURVES, OUTCOMES, strict=True):
        search.run(*curve, outcome=outcome)
    search.store.close()
    folder = search.config.local_path
    searched, page = load_search(folder), folder / "report.html"
    write_report(searched, page)
    result = SearchResult.from_record(searched)
    tracker = track(search.config, url, searched.about["id"], searched.objectives, earlier=searched.trials)
    end = make_search_end("FINISHED", render_description(folder, result), result.metrics)
    tracker.finish(end, [page], 120.0)
    mlflow = {"tracking_uri": url, "experiment_id": tracker.experiment_id, "run_id": tracker.run_id}
    return SimpleNamespace(
        url=url,
        link=list(view_instructions(mlflow, folder))[-1],
        ids={run.info.run_name: run.info.run_id for run in runs_of(tracker).values()},
    )


@pytest.fixture
def page(chromium):
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(30_000)
    yield context.new_page()
    context.close()


def test_link_opens_the_search_with_its_note_and_report(page, told):
    page.goto(told.link)
    for name in ("trial-000", "trial-003"):
        assert page.get_by_role("link", name=name).get_attribute("href").endswith(told.ids[name])
    page.get_by_role("strong").get_by_text("Best val/score: 0.6").wait_for()
    assert page.get_by_role("code").get_by_text("lr", exact=True).first.is_visible()
    assert page.get_by_role("columnheader", name="parameter", exact=True).is_visible()
    assert page.get_by_role("link", name="Runs", exact=True).first.is_visible(), "among trainings, not evaluations"
    page.get_by_role("tab", name="Artifacts").click()
    page.get_by_text("report.html").first.click()
    report = page.frame_locator("iframe")
    report.get_by_role("heading", name="one", exact=True).wait_for()
    report.locator(".figure .main-svg").first.wait_for()
