"""A search as people find it in MLflow's UI: a real server, and a browser."""

import json
import re
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from mlflow.tracking import MlflowClient

from search.analysis.result import SearchResult
from search.reporting.console.summary import view_instructions
from search.reporting.html.report import write_report
from search.study.record import load_search
from search.tracking.description import render_description
from search.tracking.runs import Runs
from search.tracking.tracker import MLflowCallback
from search.tracking.uri import resolve_tracking_uri
from tests.search.stored_studies import Search
from tests.servers.mlflow import MlflowServer

pytestmark = pytest.mark.usefixtures("chromium")  # first: without it, no server is started
CURVES = [[0.1, 0.2, 0.3], [0.15, 0.35], [0.05], [0.3, 0.4, 0.6]]
OUTCOMES = ["completed", "pruned", "diverged", "completed"]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Where MLflow has a search of four trials, of which it was told as a driver does; the runs by name."""
    folder = tmp_path_factory.mktemp("ui")
    server = MlflowServer(folder).start()
    try:
        yield tell(search_in(folder / "runs"), server.url)
    finally:
        server.stop()


def search_in(folder):
    search = Search(folder)
    for curve, outcome in zip(CURVES, OUTCOMES, strict=True):
        number = search.begin()
        for epoch, score in enumerate(curve, start=1):
            search.report(number, epoch, score)
        search.end(number, outcome)
    search.store.close()
    return search


def tell(search, url):
    searched, page = load_search(search.config.local_path), search.config.local_path / "report.html"
    write_report(searched, page)
    result = SearchResult.from_record(searched)
    note = render_description(search.config.local_path, result)
    where = resolve_tracking_uri(search.config, {"MLFLOW_TRACKING_URI": url})
    runs = Runs(search.config, *where, searched.about["id"], searched.objectives)
    tracker = MLflowCallback(runs, searched.trials)
    tracker.finish("FINISHED", note, result.metrics, [page], 120.0)
    found = MlflowClient(url).search_runs([tracker.experiment_id])
    mlflow = {"tracking_uri": url, "experiment_id": tracker.experiment_id, "run_id": tracker.run_id}
    return SimpleNamespace(
        url=url,
        link=list(view_instructions(mlflow, search.config.local_path))[-1],
        experiment=tracker.experiment_id,
        ids={run.info.run_name: run.info.run_id for run in found},
        lr=[str(trial.params["lr"]) for trial in searched.trials],
    )


@pytest.fixture(scope="module")
def window(chromium):
    """One for all: MLflow's UI is loaded once."""
    context = chromium.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(30_000)
    yield context
    context.close()


@pytest.fixture
def shown(window, told):
    """Opens a page of the UI below its address."""
    page = window.new_page()

    def show(path):
        page.goto(path if "://" in path else f"{told.url}/#/{path}")
        return page

    yield show
    page.close()


def as_json(value):
    return quote(json.dumps(value))


def test_the_link_told_at_the_end_opens_the_search_with_its_trials_its_note_and_its_report(shown, told):
    page = shown(told.link)
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


def test_trials_lie_below_their_search_and_two_of_them_can_be_compared(shown, told):
    page = shown(f"experiments/{told.experiment}/runs?workflowType=machine_learning")
    search = page.get_by_role("row").filter(has=page.get_by_role("link", name="one", exact=True))
    search.wait_for()
    assert page.get_by_role("link", name=re.compile("^trial-")).count() == 0
    search.get_by_role("button").first.click()
    page.get_by_role("link", name="trial-003").wait_for()
    assert page.get_by_role("link", name=re.compile("^trial-")).count() == 4
    for name in ("trial-001", "trial-003"):
        page.locator(f"[row-id='{told.ids[name]}'] .ag-checkbox-input").check()
    page.get_by_role("button", name="Compare").click()
    searched = page.get_by_role("table").filter(has_text="inner.depth")
    searched.wait_for()
    for number in (1, 3):
        assert told.lr[number] in searched.inner_text()
        assert page.get_by_role("cell", name=f"trial-00{number}").is_visible()
    metrics = page.get_by_role("rowgroup").filter(has_text="0.35")
    metrics.filter(has_text="0.6").first.wait_for()


def test_the_chart_of_a_metric_has_the_curve_of_each_trial_by_epoch(shown, told):
    runs = [told.ids[f"trial-{number:03d}"] for number in range(len(CURVES))]
    page = shown(
        f"metric?runs={as_json(runs)}&metric={as_json('val/score')}&experiments={as_json([told.experiment])}"
        f"&plot_metric_keys={as_json(['val/score'])}&x_axis=step"
    )
    chart = page.locator(".js-plotly-plot").first
    chart.locator(".scatterlayer .trace").nth(3).wait_for(state="attached")
    curves = chart.evaluate("plot => plot.data.map(curve => [curve.name, [...curve.x], [...curve.y]])")
    drawn = {name: dict(zip(epochs, scores, strict=True)) for name, epochs, scores in curves}
    assert drawn == {f"trial-{number:03d}": dict(enumerate(scores, start=1)) for number, scores in enumerate(CURVES)}
