"""A search that dies at any moment and is taken up again: all that needs no Ray."""

import errno
import json
import random
import shutil
import sys
from pathlib import Path

import pytest

from search.config import load_config
from search.errors import UsageError
from search.journal import Journal
from search.plan import plan
from search.resume import begin, take_up
from search.run import go_on
from search.searcher import StudySearcher
from search.trials import outcome_of, reports_of
from trainables import checkpoint
from trainables.allowance import Allowance

TASKS = Path(__file__).parent / "tasks"
LR = {"search": {"lr": "1e-4..1e-1:log"}, "set": {"epochs": 9, "precision": "fp32"}}

FIRST = 4  # writes to the study after which there is something to take up: its creation, and what it remembers


class Killed(BaseException):
    """What SIGKILL would do."""


@pytest.fixture
def die(monkeypatch):
    """Makes the process die at a write to the study: before it, or when half of it is on the disk."""
    write = Journal.append_logs

    def at(number: int | None, half: bool = False) -> None:
        left = [number]

        def append_logs(self, logs):
            if left[0] == 0:
                if half:
                    text = json.dumps(logs[0]).encode()
                    self._file.write(text[: len(text) // 2])
                self._closed.set()
                self._syncing.join()
                self._file.close()
                self._lock.close()  # as the kernel does
                raise Killed
            if left[0] is not None:
                left[0] -= 1
            write(self, logs)

        monkeypatch.setattr(Journal, "append_logs", append_logs)

    return at


class Watching:
    """What a search tells its observers, over all of its drivers."""

    def __init__(self):
        self.ended = []

    def trial_started(self, number, config, copied_from=None): ...

    def trial_reported(self, number, epoch, metrics, at): ...

    def trial_ended(self, number, outcome, reason):
        self.ended.append((number, outcome))


def start(folder, **given):
    """A new search in `folder`, or what a driver left of it."""
    if (folder / "runs" / "one" / "study.journal").exists():
        return take_up(folder / "runs" / "one", {})
    task = {"task": f"{TASKS / 'toy.py'}:Toy", "name": "one", "storage": folder / "runs"}
    planned = plan(load_config({**task, **LR, **given}))
    planned.config.folder.mkdir(parents=True)
    return planned, begin(planned)


def drive(planned, held, trained, gangs=1, seed=0):
    """Train in `gangs` at once as Tune would have it: each step one of them finishes an epoch."""
    watching, draw = Watching(), random.Random(seed)
    config = planned.config
    searcher = StudySearcher(
        held.study,
        planned.space,
        planned.schedule,
        planned.objective,
        config.trials,
        config.folder,
        attempt=str(len(trained)),
        observers=[watching],
    )
    searcher.mend()
    live: dict[str, dict] = {}
    names = (f"stretch-{n}" for n in range(10_000))
    while True:
        while len(live) < gangs and isinstance(given := searcher.suggest(name := next(names)), dict):
            live[name] = {**given["stretch"], "done": given["stretch"]["epoch"]}
            path = given["stretch"]["checkpoint"]
            assert path is None or checkpoint.load(Path(path))["epoch"] == live[name]["done"]
        if searcher.error is not None:
            raise searcher.error
        if not live:
            break
        name = draw.choice(sorted(live))
        stretch = live[name]
        stretch["done"] += 1
        epoch, lr = stretch["done"], stretch["config"]["lr"]
        trained.append((stretch["trial"], epoch))
        path = Path(stretch["folder"]) / f"epoch-{epoch}-{stretch['attempt']}.pt"
        checkpoint.save({"epoch": epoch}, path)
        allowance = Allowance(stretch["allowance"])
        costs = allowance.after(epoch, {"samples": 64.0, "gpu_seconds": 1.0})
        stretch["allowance"] = costs.get("allowance")
        done = epoch == stretch["until"] or allowance.is_spent
        metrics = {"val/loss": lr + 1 / epoch, "speed": epoch}
        report = {"done": done, "epoch": epoch, "metrics": metrics, "checkpoint": str(path)}
        report |= costs
        if lr < 3e-4:
            done, report = True, {"done": True, "outcome": "diverged", "reason": "val/loss is nan"}
        result = {"done": done, "reports": json.dumps([report])}
        if done:
            del live[name]
            searcher.on_trial_complete(name, result)
        else:
            searcher.on_trial_result(name, result)
    searcher.close(prune=True)
    held.store.close()
    return watching


def told(study):
    """All of a study but its times and the names of its checkpoints."""
    return [
        {
            "number": trial.number,
            "state": trial.state,
            "outcome": outcome_of(trial),
            "params": trial.params,
            "values": trial.values,
            "reported": trial.intermediate_values,
            "metrics": {epoch: report["metrics"] for epoch, report in reports_of(trial).items()},
            "constraints": trial.constraints,
            "reason": trial.user_attrs["reason"],
            "config": trial.user_attrs["config"],
        }
        for trial in study.trials()
    ]


def files(folder):
    return {path.parent.name: path.name.split("-")[1] for path in folder.glob("runs/one/checkpoints/*/*.pt")}


def count_writes(monkeypatch, folder, **given):
    writes = []
    write = Journal.append_logs
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append_logs", lambda self, logs: (writes.append(0), write(self, logs))[1])
        planned, held = start(folder, **given)
        trained = []
        drive(planned, held, trained)
    return len(writes), held.study, trained


@pytest.mark.parametrize(
    ("scheduler", "half", "moments", "more"),
    [
        ("asha", False, slice(None), {}),
        ("asha", True, slice(None), {}),
        ("asha", False, slice(0, None, 3), {"fidelity": "samples", "max_fidelity": 7 * 64}),
        ("asha", False, slice(1, None, 2), {"trials": 4, "objective": ["val/loss", "speed:max"]}),
        ("asha-stop", False, slice(1, None, 3), {}),
        ("median", False, slice(2, None, 4), {}),
        ("pbt", False, slice(None), {}),
    ],
)
def test_a_search_that_dies_at_any_write_is_the_search_that_never_died(
    tmp_path, die, monkeypatch, scheduler, half, moments, more
):
    whole = tmp_path / "whole"
    options = {"trials": 5, "scheduler": scheduler, "sampler": "tpe", **more}
    first = FIRST + ("objective" in more)
    writes, expected, once = count_writes(monkeypatch, whole, **options)
    assert writes > 40
    for moment in range(1, writes)[moments]:
        folder = tmp_path / str(moment)
        trained: list[tuple[int, int]] = []
        die(moment, half)
        with pytest.raises(Killed):
            drive(*start(folder, **options), trained)
        die(None)
        if moment < first:
            with pytest.raises(UsageError, match="must name a search that has begun, but one ended before it did"):
                start(folder)
            continue
        planned, held = start(folder)
        drive(planned, held, trained)
        assert told(held.study) == told(expected), f"it died at write {moment}"
        assert files(folder) == files(whole)
        assert len(trained) <= len(once) + 1, "at most the epoch that ran is trained again"
        shutil.rmtree(folder)


@pytest.mark.parametrize("seed", range(5))
def test_two_gangs_whose_driver_dies_again_and_again_end_every_trial_once(tmp_path, die, seed):
    draw, trained, drivers = random.Random(seed), [], 1
    while True:
        die(draw.randint(FIRST, 30), half=draw.random() < 0.5)
        try:
            planned, held = start(tmp_path, trials=9)
            drive(planned, held, trained, gangs=2, seed=drivers)
            break
        except Killed:
            drivers += 1
    assert drivers > 4
    trials = held.study.trials()
    assert [trial.number for trial in trials] == list(range(9))
    assert all(trial.state.is_finished() for trial in trials)
    for trial in trials:
        epochs = list(reports_of(trial))
        assert epochs == list(range(1, len(epochs) + 1))
    assert len(trained) - len(set(trained)) <= 2 * (drivers - 1), "at most the epoch that each gang trained"


SOURCE = """
import torch
from trainables.task import Task, TaskConfig, searchable

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
    planned.config.folder.mkdir(parents=True)
    begin(planned).store.close()
    held = []

    def taken_up(fields=BEFORE, mode="min", given=None):
        file.write_text(SOURCE.format(fields=fields, mode=mode))
        planned, own = take_up(tmp_path / "runs" / "one", given or {})
        held.append(own)
        return planned, own.notes

    yield taken_up
    for own in held:
        own.store.close()


def test_a_search_that_is_taken_up_is_what_it_was(begun):
    planned, notes = begun()
    assert notes == ("search one goes on: 0 trials have ended, 0 have begun",)
    assert [str(p) for p in planned.space.parameters] == ["0.001..0.1"]
    assert planned.space.epochs == 3
    assert planned.config.trials == 2
    assert planned.space.config({}).layers == {"a": 2}


def test_options_that_leave_its_trials_alone_can_be_given_anew(begun, tmp_path):
    planned, _ = begun(given={"trials": "20", "time_budget": "1h", "sampler": "random"})
    assert (planned.config.trials, planned.config.time_budget, planned.config.sampler) == (20, 3600, "random")
    assert "trials: 20" in (tmp_path / "runs" / "one" / "search.yaml").read_text()


def test_other_options_are_refused_in_one_line(begun):
    with pytest.raises(UsageError) as caught:
        begun(given={"seed": "2", "search": {"lr": "0..1"}, "task": "arc"})
    (problem,) = caught.value.problems
    assert problem.startswith("--resume must come without --search, --seed, a task: one goes on as it began.")
    assert "--trials" in problem


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            BEFORE.replace("high=0.1", "high=0.5"),
            "lr stays searched in 0.001..0.1, as before, and is not searched in 0.001..0.5",
        ),
        (BEFORE.replace("= 8", "= 9"), "width stays 8, as before, and is not 9"),
        (f"{BEFORE}; depth: int = 2", "depth is 2: the task had no such parameter before"),
        (BEFORE.split(";")[0], "width was 8: the task has no such parameter any more"),
    ],
)
def test_a_task_that_changed_meanwhile_goes_on_with_the_space_that_was_and_says_so(begun, fields, told):
    planned, notes = begun(fields)
    assert told in notes
    assert any(
        note.startswith("changing.py changed since one last ran, and trials go on with the new") for note in notes
    )
    assert [str(p) for p in planned.space.parameters] == ["0.001..0.1"]


def test_a_value_that_is_a_group_stays_what_it_was(begun):
    planned, notes = begun(BEFORE.replace("a=2", "a=3"))
    assert "layers stays {'a': 2}, as before, and is not {'a': 3}" in notes
    assert planned.space.config({}).layers == {"a": 2}


def test_code_is_set_aside_once_for_each_change_and_never_what_runs_now(tmp_path, monkeypatch):
    file, folder = tmp_path / "edited.py", tmp_path / "runs" / "one"
    code = folder / "code" / "edited.py"

    def drive_with(fields):
        """As a driver does that then dies: its Ray copies the code where there is no copy. Returns what runs."""
        monkeypatch.delitem(sys.modules, "edited", raising=False)
        if fields:
            file.write_text(SOURCE.replace("Changing", "Edited").format(fields=fields, mode="min"))
        if folder.exists():
            planned, held = take_up(folder, {})
        else:
            planned = plan(load_config({"task": f"{file}:Edited", "name": "one", "storage": tmp_path / "runs"}))
            folder.mkdir(parents=True)
            held = begin(planned)
        held.store.close()
        if not code.exists():
            code.parent.mkdir()
            shutil.copy(file, code)
        assert all(path.exists() for path in planned.source.modules)
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


@pytest.mark.parametrize("url", ["", "sqlite:///{}/studies.db"])
def test_a_search_on_a_disk_that_is_full_is_told_so_and_can_be_taken_up_later(tmp_path, monkeypatch, url):
    given = {"study": url.format(tmp_path)} if url else {}
    planned, held = start(tmp_path, **given)
    held.store.close()
    folder = planned.config.folder
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
            take_up(folder, {"trials": 20})
    assert (folder / "search.yaml").read_text() == before
    again, held = take_up(folder, {"trials": 20})
    held.store.close()
    assert again.config.trials == 20


def test_a_search_that_cannot_be_written_never_began(tmp_path):
    planned = plan(load_config({"task": f"{TASKS / 'toy.py'}:Toy", "name": "one", "storage": tmp_path / "runs", **LR}))
    (planned.config.folder / "study.journal").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"^--storage must be a folder that can be written to, but .*study\.journal"):
        begin(planned)
    assert not (planned.config.folder / "search.yaml").exists()


def test_a_task_without_the_searched_parameter_or_with_another_objective_is_refused(begun):
    with pytest.raises(
        UsageError, match="the task must have the parameter lr, which is searched, but has not any more"
    ):
        begun("rate: float = searchable(0.01, low=0.001, high=0.1)")
    with pytest.raises(
        UsageError, match="must have the objective that one began with, val/loss min, but has val/loss max"
    ):
        begun(mode="max")
    _, notes = begun()
    assert len(notes) == 1, "what was refused has changed nothing"


def test_a_search_that_runs_is_not_taken_up_by_a_second_driver(begun, tmp_path):
    begun()
    with pytest.raises(UsageError, match="one must not be running, but another process has it open"):
        take_up(tmp_path / "runs" / "one", {})


def test_the_command_that_goes_on_names_the_folder_of_searches_wherever_it_was_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert go_on(tmp_path / "runs" / "one") == "python search/run.py --resume one"
    assert go_on(tmp_path / "my runs" / "one") == f"python search/run.py --resume one --storage '{tmp_path}/my runs'"


def test_a_search_that_is_not_there_says_where_it_was_looked_for(tmp_path):
    with pytest.raises(UsageError, match=r"--resume must name a search in .*, but there is no .*/two/study\.journal"):
        take_up(tmp_path / "two", {})


def test_a_study_that_is_broken_in_its_middle_is_refused_and_one_that_is_broken_at_its_end_is_cut(begun, tmp_path):
    journal = tmp_path / "runs" / "one" / "study.journal"
    text = journal.read_bytes()
    journal.write_bytes(b"garbage\n" + text)
    with pytest.raises(UsageError, match=r"line 1 of .*study\.journal must be a record, but is not"):
        begun()
    journal.write_bytes(text + b"\0" * 100 + b'\n{"half')
    begun()
    assert journal.read_bytes().startswith(text)
    assert b"\0" not in journal.read_bytes()


def test_a_search_whose_yaml_and_task_are_gone_goes_on_from_its_study_and_its_copy(tmp_path, monkeypatch):
    source = tmp_path / "gone.py"
    source.write_text(SOURCE.replace("Changing", "Gone").format(fields=BEFORE, mode="min"))
    planned = plan(load_config({"task": f"{source}:Gone", "name": "one", "storage": tmp_path / "runs"}))
    code = planned.config.folder / "code"
    code.mkdir(parents=True)
    begin(planned).store.close()
    shutil.move(source, code)
    monkeypatch.delitem(sys.modules, "gone")  # it will be taken up by another process
    (planned.config.folder / "search.yaml").unlink()
    again, held = take_up(planned.config.folder, {})
    held.store.close()
    assert again.config.task == f"{code / 'gone.py'}:Gone"
    assert len(held.notes) == 1, "it is the same code"
    assert (planned.config.folder / "search.yaml").exists()


def test_more_trials_leave_a_population_as_large_as_it_was(tmp_path):
    task = {"task": f"{TASKS / 'toy.py'}:Toy", "name": "one", "storage": tmp_path / "runs"}
    planned = plan(load_config({**task, **LR, "scheduler": "pbt", "trials": 8}))
    planned.config.folder.mkdir(parents=True)
    begin(planned).store.close()
    again, held = take_up(planned.config.folder, {"trials": "30"})
    held.store.close()
    assert str(again.schedule) == str(planned.schedule)
    assert again.config.population == 4
