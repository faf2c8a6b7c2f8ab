"""A folder with a program, whose trials a worker runs in the process of a test and without Ray."""

import sys
import textwrap
import threading
from pathlib import Path

import psutil

from searchlight.trainables.command.settings import CommandSettings
from searchlight.trainables.ranks import Ranks
from searchlight.trainables.worker.command_runner import CommandRunner
from searchlight.trainables.worker.messages import EpochReport, SegmentAssignment, SegmentEnd, WorkerSettings

LOSS = r"loss=(?:step (?P<step>\d+) )?loss (\S+)"
COUNT = """
    import sys, time
    for epoch in range(1, int(sys.argv[1]) + 1):
        print(f"step {epoch} loss {1 / epoch}")
"""
ENDLESS = """
    import itertools, os, time
    print("pid", os.getpid())
    for epoch in itertools.count(1):
        print(f"step {epoch} loss {1 / epoch}")
        time.sleep(0.01)
"""
# Saves each epoch before it is reported. Each start trains so many epochs, and waits for its end.
RESUMING = """
    import sys, time
    from pathlib import Path
    folder = Path(sys.argv[1])
    begin = int((folder / "last").read_text()) if "--resume" in sys.argv else 0
    print("begins after", begin)
    for epoch in range(begin + 1, begin + 1 + int(sys.argv[2])):
        (folder / "last").write_text(str(epoch))
        print(f"step {epoch} loss {1 / epoch}")
    time.sleep(600)
"""


class Project:
    """The folder of a user with a program, and a worker that runs its trials."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.trials = folder / "runs" / "name" / "trials"
        self.folder.mkdir()
        self.stopping = threading.Event()

    def write(self, code: str, name: str = "train.py") -> None:
        (self.folder / name).write_text(textwrap.dedent(code))

    def worker(self, *words: str, **options: object) -> CommandRunner:
        options = {"trial_root": str(self.trials), "metrics": (LOSS,), "stop_grace": 30.0, **options}
        command = CommandSettings(
            (sys.executable, "-u", "train.py", *words), str(self.folder), objectives=("loss",), **options
        )
        settings = WorkerSettings("", "loss", command=command)
        return CommandRunner(settings, Ranks(), self.stopping)

    def segment(self, epoch=0, until=100, is_last=True, trial=0, **config) -> SegmentAssignment:
        folder = str(self.folder.parent / "checkpoints" / str(trial))
        return SegmentAssignment(trial, {"seed": 7, **config}, epoch, until, folder, "a", is_last=is_last)

    def output(self, trial: int = 0) -> list[str]:
        return (self.trials / str(trial) / "output.txt").read_text().splitlines()


def losses(reports):
    return [report.metrics["loss"] for report in reports if isinstance(report, EpochReport)]


def end(reports):
    assert isinstance(reports[-1], SegmentEnd)
    return reports[-1].outcome, reports[-1].reason


def find_notes(reports):
    return [note for report in reports for note in report.notes]


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
