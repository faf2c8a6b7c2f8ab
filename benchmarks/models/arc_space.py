"""Measure how the score of the task `arc` depends on the searched parameters, over its whole default space.

Random configs are trained to their end, because a search prefers some regions and stops most trials early. Importances
are estimated as in a report. "score" is the mean over configs of the best epoch, with its standard error, by thirds of
the learning rate and by quarters of the reward scale, both logarithmic. A search is not repeated if FOLDER has it.

    python benchmarks/models/arc_space.py FOLDER [--searches 16] [--trials 16]
"""

import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.models.local_search import search_locally
from benchmarks.models.searches import find_shares
from benchmarks.recording import Row, create_parser, print_progress, print_result
from searchlight.models.arc.policy import compute_anytime_reward
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import get_best_value
from searchlight.trainables.arc import ArcTask

BANDS = {"policy_lr": 3, "reward_scale": 4}


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--searches", type=int, default=16)
    parser.add_argument("--trials", type=int, default=16)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records = [sample(arguments.folder, seed, arguments.trials) for seed in range(arguments.searches)]
    figures = {"importances": find_shares(records), "bands": describe_bands(records)}
    print_result(figures, about=f"{sum(len(record.trials) for record in records)} random configs, trained to their end")


class ScoredArc(ArcTask):
    """The task without answers to tests, which take a third of its time."""

    def evaluate(self) -> dict[str, float]:
        first, _ = self.order_all()
        return {self.objective: float(compute_anytime_reward(first, self.judged.rewards).mean())}

    def pictures(self) -> dict[str, NDArray[np.uint8]]:
        return {}


def sample(folder: Path, seed: int, trials: int) -> SearchRecord:
    """Train random configs to their end, or read what an earlier call trained. The defaults, which come first, go."""
    path = folder / f"s{seed}.pickle"
    if path.exists():
        known: SearchRecord = pickle.loads(path.read_bytes())
        return known
    record = search_locally(
        f"{Path(__file__).resolve()}:ScoredArc", 0, seed, sampler="random", scheduler="none", trials=trials + 1
    )
    record = replace(record, trials=record.trials[1:])
    folder.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(record))
    print_progress(f"sample {seed}: {len(record.trials)} trials")
    return record


def describe_bands(records: Sequence[SearchRecord]) -> list[Row]:
    """Return the mean score of the configs of each pair of bands."""
    objective, placed = records[0].objective, dict[tuple[int, ...], list[float]]()
    trials = [trial for record in records for trial in record.trials]
    for trial in trials:
        bands = tuple(find_band(trial, name) for name in BANDS)
        placed.setdefault(bands, []).append(get_best_value(trial, objective))
    return [
        {
            **{name: describe_band(trials[0], name, band) for name, band in zip(BANDS, bands, strict=True)},
            "configs": len(scores),
            "score": np.mean(scores),
            "error": np.std(scores, ddof=1) / np.sqrt(len(scores)),
        }
        for bands, scores in sorted(placed.items())
    ]


def find_band(trial: FrozenTrial, name: str) -> int:
    """Return in which part of the range of a parameter a trial lies, on a log scale."""
    edges = list_edges(trial, name)
    return int(np.clip(np.searchsorted(edges, trial.params[name], side="right") - 1, 0, BANDS[name] - 1))


def describe_band(trial: FrozenTrial, name: str, band: int) -> str:
    low, high = list_edges(trial, name)[band : band + 2]
    return f"{low:.2g} to {high:.2g}"


def list_edges(trial: FrozenTrial, name: str) -> list[float]:
    known = trial.distributions[name]
    assert isinstance(known, FloatDistribution)
    return [float(edge) for edge in np.geomspace(known.low, known.high, BANDS[name] + 1)]


if __name__ == "__main__":
    main()
