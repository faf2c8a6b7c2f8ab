import errno
import shutil
import sys
from pathlib import Path

import pytest

from searchlight.search.config import load_config
from searchlight.search.errors import UsageError
from searchlight.search.experiment import plan, runner
from searchlight.search.experiment.opening import create_search, open_search
from searchlight.search.experiment.task_files import copy_code
from searchlight.search.formatting import format_command, resume_command
from searchlight.search.steering.command import Answer, Command, LogEntry
from searchlight.search.steering.state import build_state
from tests.end_to_end.test_driver_crash import LR, TASKS, start
from tests.search.refusals import problems_of

SOURCE = """
import torch
from searchlight.trainables.task import Task, TaskConfig, searchable

class Config(TaskConfig):
    {fields}

class Changing(Task[Config]):
    objective, mode = "val/loss", "{mode}"
    def build(self): ...
    def train_batches(self, epoch): ...
    def loss(self, batch): ...
    def evaluate(self): ...
"""
BEFORE = "lr: float = searchable(0.01, low=0.001, high=0.1); width: int = 8; layers: dict = dict(a=2)"


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """Begins a search over a task, lets its user change the task, and takes the search up."""
    monkeypatch.delitem(sys.modules, "changing", raising=False)
    file = tmp_path / "changing.py"
    file.write_text(SOURCE.format(fields=BEFORE, mode="min"))
    options = {"task": f"{file}:Changing", "name": "one", "storage": tmp_path / "runs", "trials": 2}
    planned = plan(load_config({**options, "set": {"precision": "fp32", "epochs": 3}}))
    planned.config.local_path.mkdir(parents=True)
    create_search(planned).store.close()
    held = []

    def taken_up(fields=BEFORE, mode="min", given=None):
        file.write_text(SOURCE.format(fields=fields, mode=mode))
        planned, own = open_search(tmp_path / "runs" / "one", given or {})
        held.append(own)
        return planned, own.notes

    yield taken_up
    for own in held:
        own.store.close()


def test_resumed_search_is_what_it_was(begun, tmp_path):
    planned, notes = begun()
    assert notes == ("search one continues: 0 trials have ended, 0 have not",)
    assert [str(p) for p in planned.space.parameters] == ["0.001..0.1"]
    assert (planned.space.epochs, planned.config.trials) == (3, 2)
    assert planned.space.build_config({}).layers == {"a": 2}
    with pytest.raises(UsageError, match="one must not be running, but another process has it open"):
        open_search(tmp_path / "runs" / "one", {})


def test_options_that_change_no_trial_can_be_overridden(begun, tmp_path):
    planned, _ = begun(given={"trials": "20", "time_budget": "1h", "sampler": "random"})
    assert (planned.config.trials, planned.config.time_budget, planned.config.sampler) == (20, 3600, "random")
    assert "trials: 20" in (tmp_path / "runs" / "one" / "search.yaml").read_text()


def test_resumed_search_has_the_budget_of_commands_or_a_newer_one(begun, tmp_path):
    place = tmp_path / "runs" / "one"
    planned, held = open_search(place, {})
    budget = Command("budget", {"trials": 9, "gpu_hours": 2.0})
    held.study.record_command(LogEntry(1, budget, Answer(True, "")))
    held.study.record_command(LogEntry(2, Command("finish", {"confirm": 7}), Answer(True, "")))
    held.store.close()
    for given, trials, runs in [({}, 9, 7), ({"trials": "20"}, 20, 7), ({"confirm": "5"}, 9, 5)]:
        planned, held = open_search(place, given)
        held.store.close()
        found = planned.config.trials, planned.config.gpu_hours, planned.config.confirm
        assert found == (trials, 2.0, runs)


def test_concurrency_of_a_resume_comes_before_that_of_an_earlier_command(begun, tmp_path):
    place = tmp_path / "runs" / "one"
    newer = {"concurrency": "1"}
    for given, expected in [(newer, (None, 0)), ({}, (9, 1)), (newer, (1, 2)), (newer, (1, 2)), ({}, (1, 2))]:
        _, held = open_search(place, given)
        log = held.study.get_commands()
        assert (build_state(log).get_limit("concurrency"), len(log)) == expected
        if not log:
            held.study.record_command(LogEntry(1, Command("budget", {"concurrency": 9}), Answer(True, "")))
        held.store.close()


def test_number_of_kept_checkpoints_outlasts_a_resume(begun, tmp_path):
    for given, kept in [({"keep_checkpoints": "100"}, 100), ({"trials": "3"}, 100), ({"keep_checkpoints": "2"}, 2)]:
        planned, held = open_search(tmp_path / "runs" / "one", given)
        held.store.close()
        assert planned.config.keep_checkpoints == kept


def test_number_of_confirming_runs_outlasts_a_resume(begun, tmp_path):
    for given, runs in [({}, None), ({"confirm": "12"}, 12), ({"trials": "3"}, 12), ({"confirm": "0"}, 0), ({}, 0)]:
        planned, held = open_search(tmp_path / "runs" / "one", given)
        held.store.close()
        assert planned.config.confirm == runs


def test_search_that_was_to_log_a_model_says_how_to_log_it_now(begun, tmp_path):
    place = tmp_path / "runs" / "one"
    _, held = open_search(place, {})
    about = held.study.metadata
    held.study.save_metadata({**about, "config": {**about["config"], "log_model": True}})
    held.study.commit()
    held.store.close()
    _, held = open_search(place, {})
    held.store.close()
    assert "--log-model is gone: log the model after the search with " in held.notes[-2]
    assert held.notes[-2].endswith(f"one --storage {tmp_path}/runs --log-model")


@pytest.mark.parametrize("former", [{}, {"schedule": "rungs: 53% of the trials at 1,3; 47% of the trials at 3 epochs"}])
def test_search_that_began_with_other_brackets_says_so(former, begun, tmp_path):
    place = tmp_path / "runs" / "one"
    _, held = open_search(place, {})
    assert [note for note in held.notes if "rungs" in note] == []
    about = {name: value for name, value in held.study.metadata.items() if name != "schedule"}
    held.study.save_metadata(about | former)
    held.study.commit()
    held.store.close()
    _, held = open_search(place, {})
    held.store.close()
    (note,) = [note for note in held.notes if "rungs" in note]
    assert note.endswith("may continue without comparison; now rungs, in turn: 3 trials at 1,3; 2 trials at 3 epochs")


def test_other_options_are_refused_on_resume(begun):
    (problem,) = problems_of(begun, given={"seed": "2", "search": {"lr": "0..1"}, "task": "arc"})
    assert problem.startswith("--resume must come without --search, --seed, a task: one continues as it began.")
    assert "--trials" in problem
    assert "--resource," in problem


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            BEFORE.replace("high=0.1", "high=0.5"),
            "lr stays searched in 0.001..0.1, as before, and is not searched in 0.001..0.5",
        ),
        (BEFORE.replace("= 8", "= 9"), "width stays 8, as before, and is not 9"),
        (BEFORE.replace("a=2", "a=3"), "layers stays {'a': 2}, as before, and is not {'a': 3}"),
        (f"{BEFORE}; depth: int = 2", "depth is 2: the task had no such parameter before"),
        (BEFORE.split(";")[0], "width was 8: the task has no such parameter any more"),
    ],
)
def test_changed_task_keeps_the_space_with_a_note(begun, fields, told):
    planned, notes = begun(fields)
    assert told in notes
    assert any(note.startswith("changing.py changed since one last ran, and the new code is used") for note in notes)
    assert [str(p) for p in planned.space.parameters] == ["0.001..0.1"]
    assert getattr(planned.space.build_config({}), "layers", {"a": 2}) == {"a": 2}


def test_changed_code_is_set_aside_once_for_each_change(tmp_path, monkeypatch):
    file, folder = tmp_path / "edited.py", tmp_path / "runs" / "one"
    code = folder / "code" / "edited.py"

    def drive_with(fields):
        """As a driver does that then dies before its first trial. Returns what runs."""
        monkeypatch.delitem(sys.modules, "edited", raising=False)
        if fields:
            file.write_text(SOURCE.replace("Changing", "Edited").format(fields=fields, mode="min"))
        if folder.exists():
            planned, held = open_search(folder, {})
        else:
            planned = plan(load_config({"task": f"{file}:Edited", "name": "one", "storage": tmp_path / "runs"}))
            folder.mkdir(parents=True)
            held = create_search(planned)
        held.store.close()
        copy_code(planned.source, folder)
        assert all(path.exists() for path in planned.source.modules.values())
        return code.read_text()

    def copies():
        return {path.parent.name: path.read_text() for path in folder.glob("code*/edited.py")}

    first = drive_with(BEFORE)
    second = drive_with(f"{BEFORE}; depth: int = 2")
    assert drive_with(f"{BEFORE}; depth: int = 2") == second
    assert copies() == {"code": second, "code-1": first}
    file.unlink()
    code.write_text(first)
    assert drive_with("") == first
    assert copies() == {"code": first, "code-1": first}


def test_code_of_a_finished_search_moves_with_new_trials_alone(tmp_path, monkeypatch):
    file, folder = tmp_path / "ended.py", tmp_path / "runs" / "one"
    (tmp_path / "helper.py").write_text("scale = 1\n")
    before = "import helper\n" + SOURCE.replace("Changing", "Ended").format(fields=BEFORE, mode="min")
    file.write_text(before)
    options = {"task": f"{file}:Ended", "name": "one", "storage": tmp_path / "runs", "trials": 1}
    planned = plan(load_config(options))
    folder.mkdir(parents=True)
    copy_code(planned.source, folder)
    held = create_search(planned)
    held.study.report(held.study.ask(planned.space)[0], 1, 0.5, {"metrics": {"val/loss": 0.5}, "checkpoint": None})
    held.study.end(0, "completed")
    held.store.close()
    began = {path.name for path in folder.glob("code*/*.py")}
    file.write_text(f"{before}depth = 2\n")
    (tmp_path / "helper.py").write_text("scale = 2\n")
    (tmp_path / "notes.py").write_text("what nobody imports")

    def resume(**given):
        monkeypatch.delitem(sys.modules, "ended", raising=False)
        planned, held = open_search(folder, given)
        held.store.close()
        return planned, held.notes

    _, notes = resume()
    assert notes == ("search one continues: 1 trials have ended, 0 have not",)
    assert {path.name for path in folder.glob("code*/*.py")} == began == {"ended.py", "helper.py"}
    planned, (note, _) = resume(trials=2)
    archived = folder / "code-1"
    assert note == (
        f"ended.py, helper.py changed since one last ran, and the new code is used; the earlier code is in {archived}"
    )
    assert not archived.exists(), "no trial runs yet"
    copy_code(planned.source, folder)
    assert (archived / "ended.py").read_text() == before
    assert (archived / "helper.py").read_text() == "scale = 1\n"
    assert (folder / "code" / "helper.py").read_text() == "scale = 2\n"
    (tmp_path / "notes.py").write_text("something else")
    planned, notes = resume(trials=2)
    copy_code(planned.source, folder)
    assert len(notes) == 1
    assert [path.name for path in sorted(folder.glob("code*"))] == ["code", "code-1"]


@pytest.mark.parametrize("url", ["", pytest.param("sqlite:///{}/studies.db", marks=pytest.mark.slow)])
def test_full_disk_is_refused_and_the_search_can_resume_later(tmp_path, monkeypatch, url):
    given = {"study": url.format(tmp_path)} if url else {}
    planned, held = start(tmp_path, **given)
    held.store.close()
    folder = planned.config.local_path
    before = (folder / "search.yaml").read_text()
    with monkeypatch.context() as patch:

        def write_text(self, text, **options):
            with open(self, "w", **options) as file:
                file.write(text[:10])
            raise OSError(errno.ENOSPC, "No space left on device", str(self))

        patch.setattr(Path, "write_text", write_text)
        with pytest.raises(
            UsageError, match=r"^--storage must be a folder that can be written to, but .*No space left"
        ):
            open_search(folder, {"trials": 20})
    assert (folder / "search.yaml").read_text() == before
    again, held = open_search(folder, {"trials": 20})
    held.store.close()
    assert again.config.trials == 20


def test_search_whose_checkpoints_cannot_be_written_is_refused_unchanged(tmp_path):
    planned, held = start(tmp_path)
    held.store.close()
    folder = planned.config.local_path
    (folder / "checkpoints").write_text("in the way")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UsageError, match=r"^--storage must be a folder that can be written to, but .*checkpoints"):
        open_search(folder, {"trials": 20})
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_search_that_cannot_be_written_never_began(tmp_path):
    planned = plan(load_config({"task": f"{TASKS / 'toy.py'}:Toy", "name": "one", "storage": tmp_path / "runs", **LR}))
    (planned.config.local_path / "study.journal").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"^--storage must be a folder that can be written to, but .*study\.journal"):
        create_search(planned)
    assert not (planned.config.local_path / "search.yaml").exists()


@pytest.mark.parametrize("has_begun", [True, False])
def test_only_a_search_that_never_began_leaves_no_folder(tmp_path, monkeypatch, has_begun):
    def end_without_search_yaml(driver):
        if has_begun:
            driver._open_study()
            (driver.config.path / "search.yaml").unlink()
        raise OSError("as the search ends")

    monkeypatch.setattr(runner._Driver, "_run_to_end", end_without_search_yaml)
    with pytest.raises(OSError, match="as the search ends"):
        runner.run(load_config({"task": f"{TASKS / 'toy.py'}:Toy", "name": "one", "storage": tmp_path / "runs", **LR}))
    assert (tmp_path / "runs" / "one" / "study.journal").exists() == has_begun
    assert (tmp_path / "runs" / "one").exists() == has_begun


def test_task_without_the_parameter_or_objective_is_refused(begun):
    with pytest.raises(
        UsageError, match="the task must have the parameter lr, which is searched, but no longer has it"
    ):
        begun("rate: float = searchable(0.01, low=0.001, high=0.1)")
    with pytest.raises(
        UsageError, match="must have the objective that one began with, val/loss min, but has val/loss max"
    ):
        begun(mode="max")
    _, notes = begun()
    assert len(notes) == 1, "what was refused has changed nothing"


def test_resume_command_names_the_storage_where_needed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = f"{format_command('resume')} one"
    assert resume_command(tmp_path / "runs" / "one") == command
    assert resume_command(tmp_path / "my runs" / "one") == f"{command} --storage '{tmp_path}/my runs'"
    with pytest.raises(UsageError, match=r"name must be a search in .*, but there is no .*/two/study\.journal"):
        open_search(tmp_path / "two", {})


def test_study_broken_in_its_middle_is_refused_at_its_end_cut(begun, tmp_path):
    journal = tmp_path / "runs" / "one" / "study.journal"
    text = journal.read_bytes()
    journal.write_bytes(b"garbage\n" + text)
    with pytest.raises(UsageError, match=r"line 1 of .*study\.journal must be a record, but is not"):
        begun()
    journal.write_bytes(text + b"\0" * 100 + b'\n{"half')
    begun()
    assert journal.read_bytes().startswith(text)
    assert b"\0" not in journal.read_bytes()


def test_search_without_yaml_and_task_resumes_from_copies(tmp_path, monkeypatch):
    source = tmp_path / "gone.py"
    source.write_text(SOURCE.replace("Changing", "Gone").format(fields=BEFORE, mode="min"))
    planned = plan(load_config({"task": f"{source}:Gone", "name": "one", "storage": tmp_path / "runs"}))
    code = planned.config.local_path / "code"
    code.mkdir(parents=True)
    create_search(planned).store.close()
    shutil.move(source, code)
    monkeypatch.delitem(sys.modules, "gone")  # it will be taken up by another process
    (planned.config.local_path / "search.yaml").unlink()
    again, held = open_search(planned.config.local_path, {})
    held.store.close()
    assert again.config.task == f"{code / 'gone.py'}:Gone"
    told = f"there is no {source}: the search uses its copy in {code}"
    assert held.notes == (told, "search one continues: 0 trials have ended, 0 have not"), "it is the same code"
    assert (planned.config.local_path / "search.yaml").exists()


def test_trust_stays_with_the_sampler_that_takes_it(tmp_path):
    planned, held = start(tmp_path, sampler="mixture", trust={"lr": "high"})
    held.store.close()
    for given, expected in (({}, {"lr": "high"}), ({"sampler": "tpe"}, {})):
        again, held = open_search(planned.config.local_path, given)
        held.store.close()
        assert again.config.trust == expected


def test_more_trials_keep_the_size_of_the_population(tmp_path):
    planned, held = start(tmp_path, scheduler="pbt", trials=8)
    held.store.close()
    again, held = open_search(planned.config.local_path, {"trials": "30"})
    held.store.close()
    assert str(again.schedule) == str(planned.schedule)
    assert again.config.population == 4


def test_local_search_resumes_from_any_folder_with_its_own_file(begun, tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "changing.py").write_text("raise AssertionError")
    monkeypatch.chdir(tmp_path / "other")
    planned, _ = begun()
    assert planned.config.task == f"{tmp_path / 'changing.py'}:Changing"
