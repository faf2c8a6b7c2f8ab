"""Makes the pictures in this folder: of a search in MLflow, its report, and what its best trial drew. Needs Chromium.

The programs of ARC are drawn for training puzzles, since evaluation puzzles are not to be looked at.

make search
.venv/bin/python docs/images/make.py NAME [--storage runs]
.venv/bin/python search/run.py liquid
.venv/bin/python docs/images/make.py NAME --drawn
"""

import argparse
import io
import json
import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import quote

from mlflow.tracking import MlflowClient
from PIL import Image
from playwright.sync_api import Page, sync_playwright

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))

from searchlight.models.arc.evaluation import draw_programs, trace_program  # noqa: E402  they are found now
from searchlight.models.arc.programs import Executor, RewardTable  # noqa: E402
from searchlight.models.arc.puzzles import load_puzzles  # noqa: E402
from searchlight.search.analysis.best_trials import find_best  # noqa: E402
from searchlight.search.study.record import load_search  # noqa: E402
from searchlight.trainables.checkpoint.images import find_best_images  # noqa: E402
from tests.servers.mlflow import MlflowServer  # noqa: E402

METRIC = "val/score"
PUZZLES = ("72ca375d", "178fcbfb", "1f642eb9")  # solved by one operation, by a pair, and not at all
SETTLED_MS = 2000
VISITED = {"mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": True, "mlflow.workflowType_v1": "machine_learning"}
STORE = "([key, value]) => localStorage.setItem(key, JSON.stringify(value))"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--storage", type=Path, default=Path("runs"))
    parser.add_argument("--drawn", action="store_true", help="nothing but what the best trial drew")
    given = parser.parse_args()
    storage = given.storage.absolute()
    if given.drawn:
        for picture in drawn(storage / given.name):
            keep(picture.read_bytes(), picture.name)
        return
    keep(programs(), "programs.png")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = MlflowServer(Path(folder), f"sqlite:///{storage / 'mlflow.db'}").start()
        try:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1500, "height": 900})
            page.add_init_script(f"Object.entries({json.dumps(VISITED)}).forEach({STORE})")
            keep(chart(page, server.url, given.name), "mlflow.png")
            keep(curves(page, storage / given.name / "report.html"), "report.png")
        finally:
            server.stop()


def chart(page: Page, url: str, name: str) -> bytes:
    """METRIC of all trials by epoch, in MLflow's UI."""
    client = MlflowClient(url)
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(experiments, f"tags.search = '{name}'")
    numbered = {int(run.data.tags["trial_id"]): run.info.run_id for run in runs if "trial_id" in run.data.tags}
    trials = [run_id for _, run_id in sorted(numbered.items())]
    experiment = runs[0].info.experiment_id
    page.goto(f"{url}/#/experiments/{experiment}/runs")
    page.get_by_role("link", name=name, exact=True).last.wait_for()
    page.wait_for_timeout(SETTLED_MS)  # until then it changes its own address
    asked = {"runs": trials, "metric": METRIC, "experiments": [experiment], "plot_metric_keys": [METRIC]}
    query = "&".join(f"{key}={quote(json.dumps(value))}" for key, value in asked.items())
    page.goto(f"{url}/#/metric?{query}&x_axis=step")
    lines = page.locator(".js-plotly-plot .scatterlayer .trace")
    lines.nth(len(trials) - 1).wait_for(state="attached")
    page.get_by_role("switch").first.click()  # points: the trials of one epoch have no line
    page.wait_for_timeout(SETTLED_MS)
    return page.screenshot(clip={"x": 0, "y": 0, "width": 1500, "height": 485})


def curves(page: Page, report: Path) -> bytes:
    """Screenshot the learning curves of the report."""
    page.set_viewport_size({"width": 1100, "height": 1000})
    page.goto(report.as_uri())
    section = page.locator("section").filter(has=page.get_by_role("heading", name="Learning curves"))
    section.scroll_into_view_if_needed()
    section.locator(".main-svg").first.wait_for()
    page.wait_for_timeout(SETTLED_MS)
    return section.screenshot()


def drawn(folder: Path) -> list[Path]:
    """Return the pictures of the best trial."""
    searched = load_search(folder)
    best = find_best(searched.trials, searched.objective)
    assert best is not None
    pictures = find_best_images(folder / "checkpoints" / str(best.trial_id))
    assert pictures is not None
    return sorted(pictures.glob("*.png"))


def programs() -> bytes:
    """Draw the best programs of PUZZLES."""
    cases = []
    for puzzle in load_puzzles("arc-agi-1", "training", 12):
        if puzzle.id in PUZZLES:
            table, executor = RewardTable.build([puzzle], with_combinations=True), Executor(puzzle)
            best = max(
                (table.get_result(0, index) for index in range(table.is_valid.shape[1])), key=lambda one: one.value
            )
            cases.append(trace_program(executor, best.program, 0))
    image = io.BytesIO()
    Image.fromarray(draw_programs([case for case in cases if case is not None])).save(image, "png")
    return image.getvalue()


def keep(png: bytes, name: str) -> None:
    """Save a picture in 256 colors, a third of the size."""
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(HERE / name, optimize=True)


if __name__ == "__main__":
    main()
