"""Records the learning curves of a real task: CONFIGS configurations x 3 seeds, in fp32 and in bf16, to the end.

    python benchmarks/record_curves.py liquid [--configs 300] [--processes 2] [--file FILE]

A run that was cut off is continued by the same command. All 1,800 trainings of a task take hours: without a task, the
script only says how far each table is. benchmarks/quality/recorded.py says what is trained.
"""

import argparse
import sys
from pathlib import Path

import optuna

from benchmarks.quality.recorded import CONFIGS, PRECISIONS, RECORDINGS, SEEDS, get_table_path, record
from benchmarks.quality.table import load_table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=RECORDINGS)
    parser.add_argument("--configs", type=int, default=CONFIGS)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--file", type=Path, help="the table; default: that in benchmarks/results")
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if given.task:
        file = given.file or get_table_path(given.task)
        record(given.task, file, given.configs, given.processes, lambda line: print(line, file=sys.stderr, flush=True))
    for name in [given.task] if given.task else RECORDINGS:
        rows = load_table(given.file or get_table_path(name))
        print(f"{name}: {len(rows)} of {CONFIGS * SEEDS * len(PRECISIONS)} trainings are recorded")


if __name__ == "__main__":
    main()
