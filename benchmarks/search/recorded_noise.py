"""Measure the answers of confirming runs on trainings that others recorded with several seeds.

    python benchmarks/search/recorded_noise.py --problems-from FOLDER [--searches 400]

A search tries up to 20 random configs of a table, the defaults first, and confirms the best as benchmarks/search/
confirmation.py does. The true value of a config is the mean of its recorded runs. A run is that mean plus the deviation
of a recorded one, drawn with replacement, so that true values are known exactly. Deviations are scaled to their
unbiased spread and smoothed (Silverman & Young 1987), so that runs are not equal because few were recorded. Where no
run of the defaults was recorded often enough, the median config takes their place.
"""

import sys
from multiprocessing import Pool
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import Row, create_parser, print_result
from benchmarks.search.confirmation import RUNS, UNITS, Outcome, Rng, Trials, compare_picks, describe
from benchmarks.search.problems.tables import RecordedTable
from searchlight.search.analysis.confirmation import SHOWN_FROM

FEWEST_RUNS = {"algoperf": 5, "deepobs": 10, "nanogpt": 8}  # of a config that is searched, by family
SMOOTHED = 0.3  # share of the standard deviation of a run that is normal

Array = NDArray[np.float64]


class RecordedNoise:
    """Draws searches and runs from the configs of a table that have at least `fewest` finite runs."""

    def __init__(self, table: RecordedTable, fewest: int) -> None:
        ends = [-losses[ran, -1] for losses, ran in zip(table.losses, table.ran, strict=True)]
        kept = [number for number, runs in enumerate(ends) if len(runs) >= fewest and np.isfinite(runs).all()]
        self._runs = [ends[number] for number in kept]
        self._true = np.array([runs.mean() for runs in self._runs])
        middle = int(np.argsort(self._true)[len(kept) // 2])
        self._first = kept.index(table.default_row) if table.default_row in kept else middle
        self._others = [number for number in range(len(kept)) if number != self._first]
        self._spreads = np.array([runs.std(ddof=1) for runs in self._runs])
        self.noise = float(np.sqrt((self._spreads**2).mean()))
        self.configs = len(kept)

    def search(self, draw: Rng, trials: int) -> Trials:
        """Return the trials of a search."""
        rows = np.array([self._first, *draw.permutation(self._others)[: trials - 1]])
        return Trials(self._true[rows], np.array([self._draw_run(draw, row) for row in rows]), rows)

    def draw_shared(self, draw: Rng) -> float:
        """Return 0, since seeds of different configs were recorded apart."""
        return 0.0

    def run(self, draw: Rng, trials: Trials, number: int, shared: float) -> float:
        """Return the value of a run of the config of a trial."""
        return self._draw_run(draw, int(trials.rows[number]))

    def _draw_run(self, draw: Rng, row: int) -> float:
        runs = self._runs[row]
        deviation = (draw.choice(runs) - runs.mean()) * np.sqrt(len(runs) / (len(runs) - 1))
        smooth = SMOOTHED * self._spreads[row] * draw.standard_normal()
        return float(runs.mean() + np.sqrt(1 - SMOOTHED**2) * deviation + smooth)


def measure(file: Path, runs: int, searches: int) -> Row:
    """Return the figures of `searches` of the table in `file` with `runs` confirming runs each."""
    recorded = RecordedNoise(RecordedTable(file), FEWEST_RUNS[file.stem.split("_")[0]])
    seeds = ([crc32(file.stem.encode()), number] for number in range(searches))
    outcomes = [compare_picks(recorded, np.random.default_rng(seed), runs) for seed in seeds]
    row = {"table": file.stem, "runs": runs, "configs": recorded.configs} | describe(outcomes, recorded.noise)
    return row | _count_shown(outcomes)


def _count_shown(outcomes: list[Outcome]) -> Row:
    shown = [outcome for outcome in outcomes if outcome.sure >= SHOWN_FROM]
    wrong = sum(outcome.gain <= 0 for outcome in shown)
    return {"shown": 100 * len(shown) / len(outcomes), "shown_wrongly": 100 * wrong / len(outcomes)}


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--problems-from", type=Path, required=True, metavar="FOLDER", help="the folder of the tables")
    parser.add_argument("--searches", type=int, default=400, help="of each table and number of runs")
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    files = [file for file in sorted(given.problems_from.glob("*.npz")) if file.stem.split("_")[0] in FEWEST_RUNS]
    if not files:
        sys.exit(f"--problems-from must have tables of {', '.join(FEWEST_RUNS)}, but {given.problems_from} has none.")
    cases = [(file, runs, given.searches) for runs in RUNS for file in files]
    with Pool(given.processes) as pool:
        rows = pool.starmap(measure, cases, chunksize=1)
    families: list[Row] = []
    for runs in RUNS:
        for family in FEWEST_RUNS:
            of_family = [row for row in rows if row["runs"] == runs and row["table"].startswith(family)]
            figures = of_family[0].keys() - {"table", "runs", "configs"} if of_family else ()
            means = {figure: float(np.mean([row[figure] for row in of_family])) for figure in sorted(figures)}
            families += [{"family": family, "runs": runs, "of": len(of_family)} | means]
    units = {**UNITS, "shown": "%", "shown_wrongly": "%"}
    print_result({"tables": rows, "families": families}, units, f"{given.searches} searches of up to 20 trials each")


if __name__ == "__main__":
    main()
