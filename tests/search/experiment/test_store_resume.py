import shutil
import sys

import pytest
from optuna.storages import RDBStorage

from searchlight.search.config import load_config
from searchlight.search.errors import UsageError
from searchlight.search.experiment import plan
from searchlight.search.experiment.opening import create_search, open_search
from searchlight.search.storage.cached_rdb import CachedRDBStorage
from searchlight.search.storage.study_store import open_store
from tests.end_to_end.test_driver_crash import LR, TASKS, drive
from tests.search.experiment.dying_drivers import Killed, check_deaths, kill_at_call


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    """A database without studies, which takes seconds to create."""
    path = tmp_path_factory.mktemp("database") / "studies.db"
    RDBStorage(f"sqlite:///{path}").engine.dispose()
    return path


@pytest.fixture
def begun(tmp_path, empty_database):
    def begin(name, task=f"{TASKS / 'toy.py'}:Toy"):
        (folder := tmp_path / name).mkdir()
        shutil.copy(empty_database, folder)
        options = {"task": task, "name": "one", "storage": folder / "runs", "trials": "5"}
        planned = plan(load_config({**options, **LR, "confirm": 0, "study": f"sqlite:///{folder}/studies.db"}))
        planned.config.local_path.mkdir(parents=True)
        return planned, create_search(planned)

    return begin


def die(_):
    raise Killed


@pytest.mark.slow
@pytest.mark.parametrize("answered", [False, True])
def test_search_whose_database_dies_resumes_as_if_it_had_not(begun, monkeypatch, answered):
    def resume(planned, dying, trained):
        dying.store.close()  # as the kernel does
        again, held = open_search(planned.config.local_path, {})
        drive(again, held, trained)
        store, study = open_store(planned.config.local_path, planned.config.study), held.study
        return type(study)(store.storage, "one", study._sampler, study.objectives)

    def kill_at(patch, moment):
        return kill_at_call(patch, CachedRDBStorage, "_retry_on_disconnect", moment, answered, die)

    check_deaths(monkeypatch, begun, kill_at, resume, step=17)


def test_task_that_another_user_wrote_into_the_database_does_not_run(begun, tmp_path):
    planned, held = begun("first")
    folder = planned.config.local_path
    (tmp_path / "evil.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n")
    metadata = held.study.metadata
    changed = {**metadata, "config": {**metadata["config"], "task": f"{tmp_path}/evil.py:Toy"}}
    held.study.save_metadata(changed)
    held.store.close()
    for _ in range(2):  # the refusal frees the lock
        with pytest.raises(
            UsageError, match=rf"^the study of one must have the task of {folder}/search\.yaml, .*toy\.py"
        ):
            open_search(folder, {})
    assert not (tmp_path / "ran").exists()
    text = (folder / "search.yaml").read_text()
    (folder / "search.yaml").write_text(text.replace(f"{TASKS / 'toy.py'}:Toy", f"{tmp_path}/evil.py:Toy"))
    with pytest.raises(UsageError, match=r"evil\.py must define 'Toy'"):
        open_search(folder, {})
    assert (tmp_path / "ran").exists(), "the owner of the folder has allowed it"


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("command", ["sh", "-c", "touch ran", "train.py"], "sh -c 'touch ran' train.py"),
        ("folder", "/tmp", "/tmp"),
        ("flags", "--other={value}", "--other={value}"),
        ("resume_with", "; touch ran", "; touch ran"),
    ],
)
def test_command_that_another_user_wrote_into_the_database_does_not_run(
    empty_database, tmp_path, monkeypatch, key, value, told
):
    shutil.copy(empty_database, tmp_path)
    (tmp_path / "train.py").write_text("raise SystemExit('it must not train')")
    monkeypatch.chdir(tmp_path)
    command = {"command": [sys.executable, "train.py", "--lr", "{lr}"], "search": {"lr": "0.1..1"}}
    options = {**command, "objective": "loss:min", "name": "one", "study": f"sqlite:///{tmp_path}/studies.db"}
    planned = plan(load_config(options))
    place = planned.config.local_path
    place.mkdir(parents=True)
    create_search(planned).store.close()
    _, held = open_search(place, {"stop_grace": 3})  # which may change
    metadata = held.study.metadata
    held.study.save_metadata({**metadata, "config": {**metadata["config"], key: value}})
    held.study.commit()
    held.store.close()
    with pytest.raises(UsageError) as refused:
        open_search(place, {})
    assert f"must have the {key} of {place / 'search.yaml'}, " in str(refused.value)
    assert f"but has {told}. Another user may have changed the study." in str(refused.value)


def test_command_of_a_job_resumes_elsewhere_and_in_the_next_job(empty_database, tmp_path, monkeypatch):
    shutil.copy(empty_database, tmp_path)
    jobs = tmp_path / "session_1" / "runtime_resources" / "working_dir_files"
    folders = [jobs / "_ray_pkg_1", tmp_path / "project", jobs / "_ray_pkg_2"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "train.py").write_text("raise SystemExit('it must not train')")
    monkeypatch.chdir(folders[0])
    command = {"command": [sys.executable, "train.py", "--lr", "{lr}"], "search": {"lr": "0.1..1"}}
    study = {"study": f"sqlite:///{tmp_path}/studies.db", "storage": tmp_path / "runs", "name": "one"}
    planned = plan(load_config({**command, **study, "objective": "loss:min"}))
    planned.config.local_path.mkdir(parents=True)
    create_search(planned).store.close()
    for folder in folders[1:]:
        monkeypatch.chdir(folder)
        again, held = open_search(planned.config.local_path, {})
        held.store.close()
        assert again.command.folder == str(folder)


def test_study_in_a_database_uses_its_copy_of_the_task_until_the_file_is_back(begun, tmp_path, monkeypatch):
    source = tmp_path / "away.py"
    shutil.copy(TASKS / "toy.py", source)
    planned, held = begun("first", f"{source}:Toy")
    held.store.close()
    folder = planned.config.local_path
    (folder / "code").mkdir()
    shutil.move(source, folder / "code" / "away.py")
    for expected in (folder / "code" / "away.py", source):
        monkeypatch.delitem(sys.modules, "away")  # another process resumes it
        again, held = open_search(folder, {})
        held.store.close()
        assert again.config.task == f"{expected}:Toy"
        shutil.copy(TASKS / "toy.py", source)


def test_search_at_another_url_is_found_and_remembered(begun, tmp_path):
    planned, held = begun("first")
    folder = planned.config.local_path
    with pytest.raises(UsageError, match="one must not be running, but another process has it open"):
        open_search(folder, {})
    held.store.close()
    moved = (tmp_path / "first" / "studies.db").rename(tmp_path / "moved.db")
    with pytest.raises(
        UsageError, match=rf"no {folder} that is kept in sqlite:///.*studies\.db\. .*list --storage .* shows"
    ):
        open_search(folder, {})
    for given in ({"study": f"sqlite:///{moved}"}, {}):
        planned, held = open_search(folder, given)
        assert planned.config.study == f"sqlite:///{moved}"
        drive(planned, held, [])
    assert len(held.study.get_trials()) == 5
