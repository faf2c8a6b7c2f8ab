"""The site of the documentation: it is built without the network, and its search finds what people look for."""

import os
import re
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import quote

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", ROOT / "deploy" / "mkdocs.yml"]
    env = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "https_proxy": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    done = subprocess.run([*command, "--site-dir", folder], env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"a link or a docstring is wrong:\n{done.stderr}"
    return folder


@pytest.fixture(scope="module")
def address(site):
    handler = partial(SimpleHTTPRequestHandler, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_site_has_the_api_from_the_docstrings_and_the_examples(site):
    api = (site / "api.html").read_text(encoding="utf-8")
    for name in ("searchlight.Task.train_batches", "searchlight.SearchConfig", "searchlight.start"):
        assert f'id="{name}"' in api
    assert "Subclass it, name an objective" in api
    assert (site / "repository" / "examples" / "script.py").read_text() == (ROOT / "examples" / "script.py").read_text()
    for page, link in (("overview", "tutorial.html"), ("tutorial", "overview.html#your-own-task-is-one-file")):
        assert f'href="{link}"' in (site / f"{page}.html").read_text(encoding="utf-8")
    assert "../" not in re.sub(r'="[^"]*"', "", (site / "overview.html").read_text(encoding="utf-8"))  # in its code


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("argparse", "bring-your-code.html"),
        ("slurm", "cluster.html"),
        ("constraint", "search-space.html"),
        ("tensorboard", "mlflow.html"),
        ("W&B", "mlflow.html"),
        ("latency", "search-space.html"),
        ("should_stop", "bring-your-code.html"),
        ("hugging face", "bring-your-code.html"),
        ("conditional", "search-space.html"),
        ("stop trial", "steering.html"),
        ("jupyter", "results.html"),
        ("windows", "index.html"),
        ("upgrade", "index.html"),
        ("fsdp", "examples.html"),
    ],
)
def test_search_of_the_site_finds_the_page(chromium, address, words, page):
    shown = chromium.new_page(viewport={"width": 1400, "height": 900})
    shown.goto(f"{address}/index.html?q={quote(words)}")
    links = shown.locator("a.md-search-result__link")
    links.first.wait_for(state="attached", timeout=60_000)
    found = [link.get_attribute("href") for link in links.all()]
    shown.close()
    pages = dict.fromkeys(link.split("?")[0].rpartition("/")[2] for link in found)
    assert page in [*pages][:4], found  # what is seen without scrolling
