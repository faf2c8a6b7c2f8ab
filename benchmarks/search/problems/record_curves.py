"""Record the learning curves of real tasks for configs x seeds x precisions, each trained to the end.

    python benchmarks/search/problems/record_curves.py noisy linear [--configs 250] [--processes 2]

The same command resumes an interrupted run. A small task takes two minutes, `lm` half an hour, `liquid` hours.
Without a task, the script only prints the progress of each table. recorded.py defines the tasks.
"""

import sys
from functools import partial
from pathlib import Path

import optuna

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # a clone need not be installed

from benchmarks.recording import create_parser
from benchmarks.search.problems.recorded import RECORDINGS, get_table_path, record
from benchmarks.search.problems.table import load_table


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("tasks", nargs="*", metavar="task", help=", ".join(RECORDINGS))
    parser.add_argument("--configs", type=int, help="of each task; default: all")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    if unknown := set(given.tasks) - RECORDINGS.keys():
        sys.exit(f"The task must be among {', '.join(RECORDINGS)}, but got {', '.join(unknown)}.")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name in given.tasks:
        say = partial(print, f"{name}:", file=sys.stderr, flush=True)
        record(name, get_table_path(name), given.configs, given.processes, say)
    for name in given.tasks or RECORDINGS:
        rows = load_table(get_table_path(name))
        print(f"{name}: {len(rows)} of {RECORDINGS[name].trainings} trainings are recorded")


if __name__ == "__main__":
    main()
