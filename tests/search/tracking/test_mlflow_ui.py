import re
import shutil
from types import SimpleNamespace

import pytest
from mlflow.tracking import MlflowClient

from searchlight.search.analysis.result import SearchResult
from searchlight.search.reporting.console.summary import view_instructions
from searchlight.search.reporting.html.report import write_report
from searchlight.search.study.record import load_search
from searchlight.search.tracking.description import render_description
from searchlight.search.tracking.events import make_search_end
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
        number = search.begin()
        for epoch, score in enumerate(curve, start=1):
            search.report(number, epoch, score, **{"amp/skipped": 0.0, "train/loss": 1.0})
        search.end(number, outcome)
    search.store.close()
    folder = search.config.local_path
    searched, page = load_search(folder), folder / "report.html"
    write_report(searched, page)
    result = SearchResult.from_record(searched)
    runs = {"objectives": searched.objectives, "about": searched.about}
    tracker = track(search.config, url, **runs, earlier=searched.trials)
    end = make_search_end("FINISHED", render_description(folder, result), result.metrics)
    tracker.finish(end, [page], 120.0)
    mlflow = {"tracking_uri": url, "experiment_id": tracker.experiment_id, "run_id": tracker.run_id}
    return SimpleNamespace(
        url=url,
        experiment=tracker.experiment_id,
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


def test_objective_is_the_first_chart_of_a_trial(page, told):
    page.goto(f"{told.url}/#/experiments/{told.experiment}/runs/{told.ids['trial-000']}/model-metrics")
    sections = page.get_by_text(re.compile(r"^(Objective|amp|best|train|val)\b.* ?\(1\)$"))
    sections.nth(4).wait_for()
    assert sections.first.inner_text().startswith("Objective/val")


def test_note_leads_to_parallel_coordinates_in_three_clicks(page, told):
    page.goto(told.link)
    with page.expect_popup() as opened:
        page.get_by_role("link", name="Compare the trials").click()
    trials = opened.value
    trials.get_by_role("link", name="trial-001").wait_for()
    names = trials.get_by_role("link", name=re.compile("^trial-")).all_inner_texts()
    assert sorted(names) == [f"trial-{number:03d}" for number in range(4)]
    trials.get_by_role("checkbox").first.click()
    trials.get_by_role("button", name="Compare", exact=True).click()
    trials.get_by_text("Comparing 4 Runs from 1 Experiment").wait_for()
    axes = trials.locator(".js-plotly-plot .parcoords .axis-title")
    axes.nth(1).wait_for()
    assert axes.all_text_contents() == ["lr", "Objective/val/score"]


def test_pruned_trial_is_found_by_tag_and_not_marked_as_failed(page, told):
    """Test the filters that docs/mlflow.md names."""
    client = MlflowClient(told.url)

    def find(query):
        return sorted(run.info.run_name for run in client.search_runs([told.experiment], query))

    assert find("tags.outcome = 'pruned'") == ["trial-001"]
    assert find("tags.outcome != 'pruned'") == ["trial-000", "trial-002", "trial-003"]
    page.goto(f"{told.url}/#/experiments/{told.experiment}/runs/{told.ids['trial-001']}")
    page.get_by_text("Finished", exact=True).wait_for()
