import os
import re
import subprocess
import sys

import pytest

from search.tracking.provenance import LONGEST_DIFF, compute_digest, list_installed_packages, read, write

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
    (folder / "my_task.py").write_text("lr = 1\n")
    (folder / "helper.py").write_text("")
    (tmp_path / "search").mkdir()
    return folder


def written(project):
    folder = project.parent / "search"
    modules = [project / "helper.py", project / "my_task.py"]
    write(folder, f"{project / 'my_task.py'}:MyTask", modules, [{"CPU": 2.0, "node:10.0.0.1": 1.0}])
    diff = folder / "code.diff"
    return read(folder), diff.read_text() if diff.exists() else ""


def test_the_version_of_a_task_is_the_commit_of_its_repository(project):
    git(project, "init")
    git(project, "add", ".")
    git(project, "commit", "-m", "one")
    found, diff = written(project)
    assert (found["code"], diff) == (git(project, "rev-parse", "HEAD"), "")


def test_files_that_git_does_not_know_count_if_the_task_imports_them(project):
    git(project, "init")
    git(project, "add", "my_task.py")
    git(project, "commit", "-m", "one")
    commit = git(project, "rev-parse", "HEAD")
    assert written(project)[0]["code"] == f"{commit}-dirty"
    git(project, "add", "helper.py")
    git(project, "commit", "-m", "two")
    (project / "runs").mkdir()
    (project / "runs" / "search.yaml").write_text("")
    assert written(project)[0]["code"] == git(project, "rev-parse", "HEAD")


def test_the_diff_can_be_applied(project):
    git(project, "init")
    lines = "lr = 1\n\n\n\n"
    (project / "my_task.py").write_text(lines)
    git(project, "add", ".")
    git(project, "commit", "-m", "one")
    (project / "my_task.py").write_text(f"depth = 2\n{lines}")
    written(project)
    git(project, "checkout", "my_task.py")
    git(project, "apply", str(project.parent / "search" / "code.diff"))
    assert (project / "my_task.py").read_text() == f"depth = 2\n{lines}"


def test_what_is_not_committed_is_told_and_kept(project):
    git(project, "init")
    git(project, "add", ".")
    git(project, "commit", "-m", "one")
    (project / "my_task.py").write_text("lr = 2\n")
    found, diff = written(project)
    assert found["code"] == f"{git(project, 'rev-parse', 'HEAD')}-dirty"
    assert "-lr = 1\n+lr = 2\n" in diff
    git(project, "commit", "-am", "two")
    assert written(project)[1] == "", "no diff of a driver before this one is left"
    (project / "my_task.py").write_text("x" * 2 * LONGEST_DIFF)
    assert LONGEST_DIFF < len(written(project)[1]) < LONGEST_DIFF + 100


def test_without_a_repository_that_has_it_the_version_is_a_digest_of_its_files(project):
    one, _ = written(project)
    assert one["code"] == compute_digest([project / "helper.py", project / "my_task.py"])
    (project / "helper.py").write_text("b = 1\n")
    two, _ = written(project)
    assert two["code"].startswith("sha256:")
    assert one["code"] != two["code"]
    git(project, "init")
    git(project, "add", "helper.py")
    git(project, "commit", "-m", "without the task")
    assert written(project)[0]["code"] == two["code"]


def test_the_environment_has_the_machine_and_what_ray_has_and_no_variables(project, monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "secret-5c1")
    found, _ = written(project)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert found["cpu"]["available"] >= 1
    assert found["ray"] == [{"CPU": 2.0}]
    kept = "".join(path.read_text() for path in (project.parent / "search").iterdir())
    assert "secret-5c1" not in kept
    assert "MY_TOKEN" not in kept


def test_the_packages_are_pinned_as_pip_pins_them(project):
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


def test_a_search_that_died_before_it_had_put_that_down_has_none(tmp_path):
    assert read(tmp_path) == {}
