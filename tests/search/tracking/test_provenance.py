import os
import re
import subprocess
import sys

import pytest

from searchlight.search.tracking.provenance import LONGEST_DIFF, compute_digest, list_installed_packages, read, write

IDENTITY = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


def git(folder, *arguments):
    env = os.environ | IDENTITY | {"GIT_CONFIG_GLOBAL": os.devnull}
    done = subprocess.run(["git", *arguments], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path):
    """A task of two files, not in a repository yet; beside it the folder of a search."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "my_task.py").write_text("lr = 1\n\n\n\n")
    (folder / "helper.py").write_text("")
    (tmp_path / "search").mkdir()
    return folder


def commit(project, *files):
    git(project, "init")
    git(project, "add", *files)
    git(project, "commit", "-m", "some")
    return git(project, "rev-parse", "HEAD")


def modules_of(project):
    return {name: project / name for name in ("helper.py", "my_task.py")}


def written(project):
    folder = project.parent / "search"
    write(folder, f"{project / 'my_task.py'}:MyTask", modules_of(project), [{"CPU": 2.0, "node:10.0.0.1": 1.0}])
    diff = folder / "code.diff"
    return read(folder), diff.read_text() if diff.exists() else ""


def test_version_is_the_commit_and_dirty_with_unknown_files(project):
    assert commit(project, "my_task.py") + "-dirty" == written(project)[0]["code"], "helper.py is imported"
    whole = commit(project, "helper.py")
    (project / "runs").mkdir()
    (project / "runs" / "search.yaml").write_text("")
    found, diff = written(project)
    assert (found["code"], diff) == (whole, ""), "no trial imports search.yaml"


def test_uncommitted_change_is_kept_as_a_diff_that_applies(project):
    head, task = commit(project, "."), project / "my_task.py"
    lines = task.read_text()
    task.write_text(f"depth = 2\n{lines}")
    found, diff = written(project)
    assert found["code"] == f"{head}-dirty"
    assert "+depth = 2\n" in diff
    git(project, "checkout", "my_task.py")
    git(project, "apply", str(project.parent / "search" / "code.diff"))
    assert task.read_text() == f"depth = 2\n{lines}"
    git(project, "commit", "-am", "two")
    assert written(project)[1] == "", "no diff of a driver before this one is left"
    task.write_text("x" * 2 * LONGEST_DIFF)
    assert LONGEST_DIFF < len(written(project)[1]) < LONGEST_DIFF + 100


def test_version_outside_of_a_repository_is_a_digest(project):
    one, _ = written(project)
    assert one["code"] == compute_digest(modules_of(project))
    (project / "helper.py").write_text("b = 1\n")
    two, _ = written(project)
    assert two["code"].startswith("sha256:")
    assert one["code"] != two["code"]
    commit(project, "helper.py")
    assert written(project)[0]["code"] == two["code"]


def test_environment_has_the_machine_and_no_variables(project, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret-5c1")
    found, _ = written(project)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cpu"]["available"] >= 1
    assert found["ray"] == [{"CPU": 2.0}]
    kept = "".join(path.read_text() for path in (project.parent / "search").iterdir())
    assert "secret-5c1" not in kept
    assert "MY_TOKEN" not in kept


def test_packages_are_pinned_as_pip_pins_them(project):
    written(project)
    lines = (project.parent / "search" / "requirements.txt").read_text().splitlines()
    assert lines == list_installed_packages()
    assert any(line.startswith("mlflow==") for line in lines)
    frozen_by_pip = subprocess.run([sys.executable, "-m", "pip", "freeze", "--all"], capture_output=True, text=True)
    if frozen_by_pip.returncode == 0:
        pinned = {
            line.lower().replace("_", "-") for line in frozen_by_pip.stdout.splitlines() if re.match(r"[\w.-]+==", line)
        }
        assert pinned <= {line.lower().replace("_", "-") for line in lines}


def test_folder_without_provenance_reads_as_empty(tmp_path):
    assert read(tmp_path) == {}
