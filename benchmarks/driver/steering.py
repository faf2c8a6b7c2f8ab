"""Measure what commands and the live page cost the driver, by the number of trials.

The searcher, its study in a journal and the handling of commands are those of a search, without Ray: each trial reports
once, at its end. The page is that of the same trials.

    python benchmarks/driver/steering.py [--trials 100,1000] [--repeats 3]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.samplers import RandomSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.driver.scale_task import ScaleConfig, compute_loss
from benchmarks.recording import Row, create_parser, name_quartiles, print_result
from searchlight.search.execution.report_handler import SearchLimits
from searchlight.search.execution.searcher import StudySearcher
from searchlight.search.experiment.steering import Steering
from searchlight.search.reporting.live_page import LivePage
from searchlight.search.schedulers.asha import FullTraining
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.search.steering.command import Command
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.study import create_study
from searchlight.trainables.worker.messages import EpochReport, GangResult, to_json

SPACE = resolve_space(ScaleConfig, {"precision": "fp32", "epochs": "1"}, {})
LR = next(parameter.name for parameter in SPACE.parameters if parameter.name.endswith("lr"))
COMMANDS = [
    *(Command("avoid", {"region": f"{LR}>={0.09 + 0.001 * number}"}) for number in range(5)),
    Command("budget", {"trials": 100_000}),
    Command("keep", {"trials": [0]}),
    Command("pause", {"drain": True}),
    Command("continue", {}),
]


class Clock:
    """The CPU seconds of this thread that calls have taken."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def measure(self, function: Callable[..., object]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            before = time.thread_time()
            function(*arguments)
            self.seconds += time.thread_time() - before

        return call


def search(folder: Path, trials: int, commands: list[Command]) -> tuple[float, float, SearchRecord]:
    """Run a search. Return the CPU seconds of its driver, those for commands, and the search."""
    study, store = create_study(folder, RandomSampler, [Objective("val/loss", "min")])
    study.save_metadata({"config": {"task": "x", "sampler": "random", "scheduler": "none"}, "rungs": [1]})
    schedule = FullTraining.without_stopping(1, "min")
    searcher = StudySearcher(study, SPACE, schedule, SearchLimits(trials), folder, "a")
    steering = Steering(searcher, folder, print, print, lambda line: None, print)
    clock, controls = Clock(), searcher.controls
    controls.apply_waiting = clock.measure(controls.apply_waiting)
    controls.update_trials = clock.measure(controls.update_trials)
    before = time.thread_time()
    for number in range(trials):
        if number == 1:  # once there is a trial to keep
            for command in commands:
                steering.receive(command)
        segment = searcher.suggest(f"t{number}")["segment"]
        loss = compute_loss(ScaleConfig.model_validate(segment.config), 1)
        report = EpochReport(1, {"val/loss": loss}, f"/nowhere/{number}.pt", {}, done=True)
        searcher.on_trial_complete(f"t{number}", {"reports": to_json(GangResult("gang", [report])), "is_held": False})
        if searcher.error is not None:
            raise searcher.error
    total = time.thread_time() - before
    record = study.get_record()
    store.close()
    return total, clock.seconds, record


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--trials", default="100,1000")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    costs, pages = list[Row](), list[Row]()
    for trials in map(int, given.trials.split(",")):
        for commands in ([], COMMANDS):
            own, total, writes = list[float](), list[float](), list[float]()
            for _ in range(given.repeats):
                with tempfile.TemporaryDirectory() as folder:
                    driver, for_commands, record = search(Path(folder), trials, commands)
                    total.append(driver)
                    own.append(for_commands)
                    page = LivePage(Path(folder), print, Path(folder), record)
                    page.prepare()
                    page.write(record.all_trials)  # the first one compresses plotly, once for a process
                    before = time.thread_time()
                    page.write(record.all_trials)
                    writes.append(time.thread_time() - before)
            sizes = {"trials": trials, "commands": len(commands)}
            costs.append({**sizes, **name_quartiles("for_commands", own), **name_quartiles("driver", total)})
        pages.append({"trials": trials, **name_quartiles("page", writes)})
    units = dict.fromkeys(("for_commands", "driver", "page"), "CPU s")
    print_result({"commands": costs, "pages": pages}, units)


if __name__ == "__main__":
    main()
