"""The files for GitHub are valid, and what they call exists."""

import re

import pytest
import yaml

from tests.conftest import ROOT

FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def read_steps():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    return [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]


def test_commands_of_the_workflow_exist():
    steps = read_steps()
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    assert {name for step in steps for name in re.findall(r"\bmake ([\w-]+)", step)} <= {*targets}
    paths = {path for step in steps for path in re.findall(r"(?:^|\s)((?:\.ci|examples)/[\w.]+)", step)}
    assert paths == {".ci/run", "examples/script.py"}
    assert [path for path in paths if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.stem)
def test_forms_have_what_github_requires(form):
    content = yaml.safe_load(form.read_text())
    assert content.keys() == {"name", "description", "body"}
    for field in content["body"]:
        assert field["type"] == "textarea"
        assert field["attributes"]["label"]


def test_citation_has_the_version_of_the_package():
    from searchlight import __version__

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert citation["license"] in (ROOT / "pyproject.toml").read_text()
