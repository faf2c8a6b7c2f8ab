"""Measure the time of a suggestion by the number of trials, with the study and sampler of a search and without Ray.

The search space has 15 parameters (scale_task.py), and 256 trials are running. Earlier trials have random values. In a
search (scale.py), other threads of the driver take time from a suggestion as well.

    python benchmarks/driver/suggestions.py [--trials 100,500,1000,2000] [--asks 40]
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNNING = 256
EPOCHS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", default="100,500,1000,2000", help="numbers of trials at which to measure")
    parser.add_argument("--asks", type=int, default=40, help="suggestions of which the median is taken")
    given = parser.parse_args()
    import optuna
    from optuna.samplers import RandomSampler

    from benchmarks.driver.scale_task import ScaleConfig, loss_of
    from searchlight.search.samplers.factory import sampler_factory
    from searchlight.search.space.objectives import Objective
    from searchlight.search.space.search_space import resolve_space
    from searchlight.search.storage.study_store import open_store
    from searchlight.search.study.study import SearchStudy

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    space = resolve_space(ScaleConfig, {"precision": "fp32"}, {})
    print(
        f"optuna {optuna.__version__}, TPE over {len(space.parameters)} parameters, {RUNNING} trials running, journal"
    )
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(Path(folder), "")
        objectives = [Objective("val/loss", "min")]
        grown = SearchStudy(store.storage, "suggestions", lambda number: RandomSampler(seed=number), objectives)
        asked = SearchStudy(store.storage, "suggestions", sampler_factory("tpe", 1), objectives)
        running: list[int] = []
        for count in map(int, given.trials.split(",")):
            wall, cpu = [], []
            while grown.get_next_number() < count:
                measured = grown.get_next_number() >= count - given.asks
                before, before_cpu = time.perf_counter(), time.thread_time()
                number, values = (asked if measured else grown).ask(space)
                if measured:
                    wall.append(1e3 * (time.perf_counter() - before))
                    cpu.append(1e3 * (time.thread_time() - before_cpu))
                config = ScaleConfig.model_validate(values)
                for epoch in range(1, EPOCHS + 1):
                    report = {"metrics": {}, "checkpoint": None, "time": time.time()}
                    grown.report(number, epoch, loss_of(config, epoch), report)
                running.append(number)
                if len(running) > RUNNING:
                    grown.end(running.pop(0), "completed")
            ordered = sorted(wall)
            quartiles = statistics.quantiles(ordered, n=4)
            print(
                f"suggestion {count:>6} median {statistics.median(ordered):.1f} ms, "
                f"quartiles {quartiles[0]:.1f} to {quartiles[2]:.1f} ms; CPU {statistics.median(cpu):.1f} ms",
                flush=True,
            )
        store.close()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
