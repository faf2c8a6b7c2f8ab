"""Resume the search of a job on a cluster: Ray unpacks the files of each job into another folder."""

import shutil
import sys

import pytest
import yaml

from searchlight.search.config import load_config
from searchlight.search.experiment.opening import create_search, open_search
from searchlight.search.experiment.plan import plan
from searchlight.search.experiment.task_files import copy_code
from searchlight.search.study.record import load_search
from tests.search.experiment.test_resume import BEFORE, SOURCE
from tests.search.refusals import problems_of


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return a function that enters the folder of a new job on a cluster, with a version of the task, or the task."""
    session = tmp_path / "session_1" / "runtime_resources" / "working_dir_files"

    def enter(name, fields="", folder=""):
        (sent := session / f"_ray_pkg_{name}" / "mine").mkdir(parents=True)
        if fields:
            (sent / "changing.py").write_text(SOURCE.format(fields=fields, mode="min"))
        monkeypatch.chdir(sent.parent / folder)
        return sent

    return enter


def begin_job(tmp_path, job, task="mine/changing.py:Changing", **where):
    """Begin a search as a job does whose cluster then dies. Return its folder."""
    job("1", BEFORE, **where)
    planned = plan(load_config({"task": task, "name": "one", "storage": tmp_path / "runs", "trials": 2}))
    folder = planned.config.local_path
    folder.mkdir(parents=True)
    create_search(planned).store.close()
    copy_code(planned.source, folder)
    return folder


def resume_job(folder):
    """Resume a search as another process. Return its plan, the file of its task, and the lines for the user."""
    planned, held = open_search(folder, {})
    held.store.close()
    return planned, planned.source.modules["changing.py"], held.notes[:-1]


@pytest.mark.parametrize(("folder", "task"), [("", "mine/changing.py"), ("mine", "changing.py")])
@pytest.mark.parametrize("is_former", [False, True])
def test_search_of_a_job_uses_the_code_that_the_next_job_sends(tmp_path, job, folder, task, is_former):
    search = begin_job(tmp_path, job, f"{task}:Changing", folder=folder)
    kept = yaml.safe_load((search / "search.yaml").read_text())["task"]
    assert kept == "mine/changing.py:Changing", "Ray unpacks the next job elsewhere"
    if is_former:  # it kept the path into the folder of the first job
        path = tmp_path / "session_1" / "runtime_resources" / "working_dir_files" / "_ray_pkg_1" / kept
        for file in (search / "search.yaml", search / "study.journal"):
            file.write_text(file.read_text().replace(kept, str(path)))

    sent = job("2", f"{BEFORE}; depth: int = 2", folder)
    planned, file, notes = resume_job(search)
    assert (file, planned.config.task) == (sent / "changing.py", kept)
    told = "changing.py changed since one last ran, and the new code is used; the earlier code is in"
    assert notes == ("depth is 2: the task had no such parameter before", f"{told} {search / 'code-1'}")
    about = load_search(search).about
    assert yaml.safe_load((search / "search.yaml").read_text())["task"] == about["config"]["task"] == kept


@pytest.mark.parametrize("folder", ["", "mine"])
@pytest.mark.parametrize("is_former", [False, True])
def test_command_of_a_job_runs_in_the_folder_that_the_next_job_sends(tmp_path, job, folder, is_former):
    sent = job("1", folder=folder).parent / folder
    (sent / "train.py").write_text("print('first')")
    command = {"command": [sys.executable, "train.py", "--lr={lr}"], "search": {"lr": "0.1..1"}}
    given = {**command, "objective": "loss:min", "name": "one", "storage": tmp_path / "runs"}
    planned = plan(load_config(given))
    assert planned.command.folder == str(sent)
    (search := planned.config.local_path).mkdir(parents=True)
    create_search(planned).store.close()
    copy_code(planned.source, search)
    kept = yaml.safe_load((search / "search.yaml").read_text())["folder"]
    assert kept == (folder or "."), "Ray unpacks the next job elsewhere"
    if is_former:  # it kept the path into the folder of the first job
        for file, form in ((search / "search.yaml", "folder: {}\n"), (search / "study.journal", '"folder":"{}"')):
            text = file.read_text()
            assert form.format(kept) in text
            file.write_text(text.replace(form.format(kept), form.format(sent)))

    sent = job("2", folder=folder).parent / folder
    (sent / "train.py").write_text("print('second')")
    again, held = open_search(search, {})
    held.store.close()
    assert again.command.folder == str(sent)
    told = "train.py changed since one last ran, and the new code is used; the earlier code is in"
    assert held.notes[:-1] == (f"{told} {search / 'code-1'}",)
    assert yaml.safe_load((search / "search.yaml").read_text())["folder"] == kept
    assert load_search(search).about["config"]["folder"] == kept


def test_search_of_a_job_resumes_outside_of_the_cluster(tmp_path, job, monkeypatch):
    search = begin_job(tmp_path, job)
    (own := tmp_path / "project" / "mine").mkdir(parents=True)
    shutil.copy("mine/changing.py", own)
    monkeypatch.chdir(own.parent)
    assert resume_job(search)[1:] == (own / "changing.py", ())
    monkeypatch.chdir(tmp_path)
    copy = search / "code" / "changing.py"
    told = f"there is no {tmp_path / 'mine' / 'changing.py'}: the search uses its copy in {search / 'code'}"
    assert resume_job(search)[1:] == (copy, (told,))
    copy.unlink()
    assert problems_of(resume_job, search) == [
        f"task must be a file that exists, but there is no {tmp_path / 'mine' / 'changing.py'}, and no copy of it in "
        f"{search / 'code'}. Resume in the folder that has mine/changing.py."
    ]
