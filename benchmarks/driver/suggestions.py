"""Measure the time of a suggestion by the number of trials, with the study and sampler of a search and without Ray.

The search space has 15 parameters (scale_task.py), and 256 trials are running. Earlier trials have random values. In a
search (scale.py), other threads of the driver take time from a suggestion as well. `mixture` believes in the defaults
of the task, as in a search.

    python benchmarks/driver/suggestions.py [--trials 100,500,1000,2000] [--asks 40] [--samplers tpe,mixture]
"""

import sys
import tempfile
import time
from pathlib import Path

import optuna
from optuna.samplers import RandomSampler

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.driver.scale_task import ScaleConfig, compute_loss
from benchmarks.recording import create_parser, get_quartiles, print_result
from searchlight.search.samplers.factory import SAMPLERS, sampler_factory
from searchlight.search.samplers.mixture import build_beliefs
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.search.storage.study_store import open_store
from searchlight.search.study.study import SearchStudy

RUNNING = 256
EPOCHS = 4
SPACE = resolve_space(ScaleConfig, {"precision": "fp32"}, {})


class Growing:
    """A study that is filled with trials of random values, of which RUNNING are running, and asks `sampler`."""

    def __init__(self, folder: Path, sampler: str) -> None:
        self.store = open_store(folder, "")
        objectives = [Objective("val/loss", "min")]
        self._random = SearchStudy(self.store.storage, "study", lambda number: RandomSampler(seed=number), objectives)
        create_sampler = sampler_factory(sampler, 1, build_beliefs(SPACE, {}))
        self._measured = SearchStudy(self.store.storage, "study", create_sampler, objectives)
        self._running: list[int] = []

    def grow(self, count: int, asks: int) -> tuple[list[float], list[float]]:
        """Grow to `count` trials. Return the wall and CPU seconds of the last `asks` suggestions."""
        wall, cpu = [], []
        while (trials := self._random.get_next_number()) < count:
            is_measured = trials >= count - asks
            before, before_cpu = time.perf_counter(), time.thread_time()
            number, values = (self._measured if is_measured else self._random).ask(SPACE)
            if is_measured:
                wall.append(time.perf_counter() - before)
                cpu.append(time.thread_time() - before_cpu)

            config = ScaleConfig.model_validate(values)
            for epoch in range(1, EPOCHS + 1):
                report = {"metrics": {}, "checkpoint": None, "time": time.time()}
                self._random.report(number, epoch, compute_loss(config, epoch), report)
            self._running.append(number)
            if len(self._running) > RUNNING:
                self._random.end(self._running.pop(0), "completed")
        return wall, cpu


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--trials", default="100,500,1000,2000", help="numbers of trials at which to measure")
    parser.add_argument("--asks", type=int, default=40, help="suggestions of which the median is taken")
    parser.add_argument("--samplers", default="tpe", help="samplers to measure, each with a study of its own")
    given = parser.parse_args()
    samplers = given.samplers.split(",")
    if unknown := set(samplers) - SAMPLERS.keys():
        sys.exit(f"--samplers must be among {', '.join(SAMPLERS)}, but got {', '.join(sorted(unknown))}.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rows = []
    for sampler in samplers:
        with tempfile.TemporaryDirectory() as folder:
            study = Growing(Path(folder), sampler)
            for count in map(int, given.trials.split(",")):
                wall, cpu = study.grow(count, given.asks)
                found = dict(zip(("low", "median", "high"), get_quartiles(wall, 1e3), strict=True))
                rows.append({"sampler": sampler, "trials": count, **found, "cpu": get_quartiles(cpu, 1e3)[1]})
            study.store.close()
    about = f"optuna {optuna.__version__}, {len(SPACE.parameters)} parameters, {RUNNING} trials running, journal"
    print_result({"suggestions": rows}, dict.fromkeys(("median", "low", "high", "cpu"), "ms"), about)


if __name__ == "__main__":
    main()
