"""Measure the driver's time per trial by study storage, for our storages and for Optuna's of the same kind.

A trial is created, reports five times, and waits at its rung. One in three ends. Tune is left out. Each line has the
first and the last fifth of the trials: the time per trial must not grow with the number of waiting trials.

    python benchmarks/driver/study_stores.py [--trials 100] [--study postgresql://user@host/database]
"""

import sys
import tempfile
import time
from pathlib import Path

import optuna
from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, get_storage
from optuna.storages.journal import JournalFileBackend

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import create_parser, print_result
from searchlight.search.space.objectives import Objective
from searchlight.search.space.search_space import resolve_space
from searchlight.search.storage.study_store import open_store
from searchlight.search.study.study import SearchStudy
from searchlight.trainables.task import TaskConfig, searchable

REPORTS = 5


class Config(TaskConfig):
    lr: float = searchable(1e-3, low=1e-5, high=1e-1, log=True)
    decay: float = searchable(1e-2, low=1e-4, high=1.0, log=True)
    depth: int = searchable(3, low=1, high=9)


SPACE = resolve_space(Config, {}, {})


def measure(storage: BaseStorage, trials: int) -> dict[str, float]:
    """Return the wall and CPU milliseconds per trial of the first and the last fifth of the trials."""
    study = SearchStudy(storage, f"bench-{time.time_ns()}", RandomSampler, [Objective("val/loss", "min")])
    wall, cpu = [time.perf_counter()], [time.process_time()]
    for index in range(trials):
        number, values = study.ask(SPACE)
        study.live.add(number)
        study.record_config(number, values)
        for epoch in range(REPORTS):
            study.get_trials()  # the scheduler reads them
            metrics = {f"metric/{i}": 1.0 for i in range(12)}
            study.report(number, epoch, 1.0, {"metrics": metrics, "checkpoint": "a" * 60, "time": time.time()})
            study.get_trial(number)
        study.live.discard(number)
        if index % 3 == 0:
            study.end(number, "pruned", "not among the best")
        wall.append(time.perf_counter())
        cpu.append(time.process_time())
    fifth = max(1, trials // 5)
    parts = {"first": (0, fifth), "last": (-1 - fifth, -1)}
    return {
        f"{kind}{part}": 1e3 * (times[end] - times[start]) / fifth
        for kind, times in (("", wall), ("cpu_", cpu))
        for part, (start, end) in parts.items()
    }


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--study", default="", help="a PostgreSQL database to compare in as well")
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        urls = {"journal": "", "SQLite": f"sqlite:///{folder}/ours.db"}
        peers = {
            "journal": lambda: JournalStorage(JournalFileBackend(f"{folder}/optuna.journal")),
            "SQLite": lambda: get_storage(RDBStorage(f"sqlite:///{folder}/optuna.db")),
        }
        if given.study:
            urls["PostgreSQL"] = given.study
            driver = given.study.replace("postgresql:", "postgresql+psycopg:")
            peers["PostgreSQL"] = lambda: get_storage(RDBStorage(driver))
        for kind, url in urls.items():
            store = open_store(Path(folder), url)
            rows.append({"storage": kind, "side": "Searchlight", **measure(store.storage, given.trials)})
            store.close()
            rows.append({"storage": kind, "side": "Optuna", **measure(peers[kind](), given.trials)})
    about = f"optuna {optuna.__version__}; time per trial, of the first fifth of {given.trials} trials and of the last"
    print_result({"stores": rows}, dict.fromkeys(("first", "last", "cpu_first", "cpu_last"), "ms"), about)


if __name__ == "__main__":
    main()
