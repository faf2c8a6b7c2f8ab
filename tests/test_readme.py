"""What the README says can be done: its task is run, its links and its tree exist."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOTES = sorted((ROOT / "benchmarks" / "notes").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")), *NOTES]


@pytest.fixture(scope="module")
def own_task(make_cli):
    """The task of the README, in a folder of its own."""
    cli = make_cli("readme")
    (block,) = re.findall(r"```python\n(# my_task\.py\n.*?)```", README, flags=re.DOTALL)
    (cli.folder / "my_task.py").write_text(block)
    return cli


def test_its_task_is_searched_with_the_default_scheduler(own_task):
    done = own_task.run("my_task.py:MyTask", "--trials", "8", "--scheduler", "hyperband", "--name", "mine", "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert sum(result["outcomes"].values()) == 8
    assert set(result["outcomes"]) == {"completed", "pruned"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", prose)
    for link, anchor in links:
        target = page.parent / link if link else page
        assert "://" in link or target.exists(), link
        assert "://" in link or not anchor or anchor in list_anchors(target), f"{link}#{anchor}"


def list_anchors(page):
    """Return the anchors that GitHub makes of the headings of a page."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_tree_names_every_package_and_nothing_else():
    page = (ROOT / "docs" / "development" / "architecture.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"## Where things are\n.*?```\n(.*?)```", page, flags=re.DOTALL)
    named, folder = set(), Path()
    for line in tree.splitlines():
        for name in re.split(" {3,}", line.strip())[0].split():
            if not line.startswith(" "):
                folder = Path(name)
            path = folder / name if line.startswith(" ") else folder
            assert (ROOT / path).exists(), line
            named.add(str(path))
    packages = {
        str(init.parent.relative_to(ROOT))
        for top in ("search", "trainables")
        for init in ROOT.glob(f"{top}/*/__init__.py")
    }
    assert packages <= named


def test_readme_has_at_most_150_lines():
    assert len(README.splitlines()) <= 150


def test_index_of_the_documentation_names_every_page():
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    docs = ROOT / "docs"
    pages = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - {"index.md"}
    assert pages <= {*re.findall(r"\]\((.*?)\)", index)}


def test_figures_of_the_readme_are_on_the_pages_that_it_names():
    reasons = README.partition("## Why Searchlight")[2].partition("\n## ")[0]
    names = ("benchmarks", "confirmation", "gpu", "reliability")
    pages = "".join((ROOT / "docs" / "development" / f"{name}.md").read_text() for name in names)
    figures = re.findall(r"(?<![\w.])\d+(?:\.\d+)? (?:%|s|minutes)|\d+ of \d+", reasons)
    assert len(figures) > 5
    assert [figure for figure in figures if figure not in pages] == []
