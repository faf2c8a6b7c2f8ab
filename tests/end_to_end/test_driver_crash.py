"""A search that dies at any write to its study and is taken up again, without Ray."""

import json
import random
import shutil
from dataclasses import replace

import pytest

from searchlight.search.config import load_config
from searchlight.search.errors import UsageError
from searchlight.search.execution.report_handler import SearchLimits
from searchlight.search.execution.searcher import StudySearcher
from searchlight.search.experiment import plan
from searchlight.search.experiment.opening import create_search, open_search
from searchlight.search.storage.journal import Journal
from searchlight.search.study.trial import get_outcome, get_reports
from searchlight.trainables import checkpoint
from searchlight.trainables.filesystem.paths import parse_path
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment, SegmentEnd
from tests.conftest import TASKS
from tests.search.execution.searcher_harness import hand_on

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

    def on_trial_changed(self, trial, is_over=False):
        if is_over or trial.state.is_finished():
            self.ended.append((trial.number, get_outcome(trial)))


def start(folder, **given):
    """A new search in `folder`, or what a driver left of it."""
    if (folder / "runs" / "one" / "study.journal").exists():
        return open_search(folder / "runs" / "one", {})
    task = {"task": f"{TASKS / 'toy.py'}:Toy", "name": "one", "storage": folder / "runs"}
    planned = plan(load_config({**task, **LR, "confirm": 0, **given}))
    planned.config.local_path.mkdir(parents=True)
    return planned, create_search(planned)


def drive(planned, held, trained, gangs=1, seed=0):
    """Train in `gangs` at once as Tune would have it: each step one of them finishes an epoch."""
    watching, draw = Watching(), random.Random(seed)
    config = planned.config
    searcher = StudySearcher(
        held.study,
        planned.space,
        planned.schedule,
        SearchLimits(config.trials),
        config.path,
        str(len(trained)),
        [watching],
        planned.confirmation,
    )
    searcher.recover()
    live: dict[str, SegmentAssignment] = {}
    names = (f"stretch-{n}" for n in range(10_000))
    while True:
        while len(live) < gangs and isinstance(given := searcher.suggest(name := next(names)), dict):
            live[name] = given["segment"]
            path = live[name].checkpoints[0]
            assert path is None or checkpoint.load(parse_path(path))["epoch"] == live[name].epoch
        if searcher.error is not None:
            raise searcher.error
        if not live:
            break
        name = draw.choice(sorted(live))
        segment = live[name]
        epoch, lr = segment.epoch + 1, segment.config["lr"]
        trained.append((segment.trial, epoch))
        path = parse_path(segment.folder) / f"epoch-{epoch}-{segment.attempt}.pt"
        checkpoint.save({"epoch": epoch}, path)
        report = EpochReport(
            epoch, {"val/loss": lr + 1 / epoch, "speed": epoch}, str(path), {"samples": 64.0, "gpu_seconds": 1.0}
        )
        live[name] = segment.continue_after(report)
        budget = live[name].budget
        if lr < 3e-4:
            report = SegmentEnd("diverged", "val/loss is nan")
        elif epoch == segment.until or (budget is not None and budget.is_spent):
            report = replace(report, done=True)
        following = hand_on(searcher, name, report)
        if following is not None:  # the gang goes on with its trial
            live[name] = following
        elif report.done:
            del live[name]
    searcher.finish(prune=True)
    held.store.close()
    return watching


def told(study):
    """All of a study but its times and the names of its checkpoints."""
    return [
        {
            "number": trial.number,
            "state": trial.state,
            "outcome": get_outcome(trial),
            "params": trial.params,
            "values": trial.values,
            "reported": trial.intermediate_values,
            "metrics": {epoch: report["metrics"] for epoch, report in get_reports(trial).items()},
            "constraints": trial.constraints,
            "reason": trial.user_attrs["reason"],
            "config": trial.user_attrs["config"],
        }
        for trial in study.get_trials()
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
        ("asha", False, slice(0, None, 5), {"trials": 4, "confirm": 6}),
    ],
)
def test_search_that_dies_at_any_write_has_the_same_result(tmp_path, die, monkeypatch, scheduler, half, moments, more):
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
            with pytest.raises(UsageError, match="name must be a search that has begun, but one ended before it did"):
                start(folder)
            continue
        planned, held = start(folder)
        drive(planned, held, trained)
        assert told(held.study) == told(expected), f"it died at write {moment}"
        assert files(folder) == files(whole)
        assert len(trained) <= len(once) + 1, "at most the epoch that ran is trained again"
        shutil.rmtree(folder)


@pytest.mark.parametrize("seed", range(5))
def test_every_trial_ends_once_however_often_drivers_die(tmp_path, die, seed):
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
    trials = held.study.get_trials()
    assert [trial.number for trial in trials] == list(range(9))
    assert all(trial.state.is_finished() for trial in trials)
    for trial in trials:
        epochs = list(get_reports(trial))
        assert epochs == list(range(1, len(epochs) + 1))
    assert len(trained) - len(set(trained)) <= 2 * (drivers - 1), "at most the epoch that each gang trained"
