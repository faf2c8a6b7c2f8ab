"""Choose learning rate and batch size for the largest recorded language models from the smaller ones.

    python benchmarks/search/scaling.py --problems-from FOLDER [--groups development] [--draws 50]

The tables are Step Law (Li et al. 2025, arXiv 2503.04715) and Marin (Wen et al. 2025, arXiv 2509.02046), read from
FOLDER. A cell has the runs of one model size and number of tokens. A target is a cell; its sources are the cells of the
same group that are no larger in either, and cost at most a third of it. The ladder starts with random runs in the
cheapest source, and goes on in the others around what the law predicts. Its budget is some runs at the target.

Fixed before anything was measured: the dense models of Step Law, and Marin's kron and nadamw, are for development. The
mixtures of experts of Step Law, on which its law was not fitted, and Marin's cautious and sophia are for the result.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a clone need not be installed

from benchmarks.recording import create_parser, print_progress, print_result
from searchlight.search.scaling.fit import SizedRun, fit_law
from searchlight.search.scaling.law import ScaledParameter

DEVELOPMENT = ("steplaw_dense", "marin_kron", "marin_nadamw")
HELD_OUT = ("steplaw_moe", "marin_cautious", "marin_sophia")
TOKENS = 2048  # of a sequence in Step Law
CHINCHILLA = 20  # tokens per parameter at Marin's ratio of 1
SHARE = 3  # sources cost at most this part of their target
FEWEST = 3  # runs at a size that is used at all
NOISE = 0.1  # percent of a loss: three times the spread between seeds of modded-nanoGPT's runs
DIRECT = 40  # runs of the direct search at the target whose tenth is the budget
STEP_LAW = {"lr": {"N": -0.713, "D": 0.307}, "batch": {"D": 0.571}}
WIDTH = 1 / 3  # exponent of the width over parameters at a fixed shape
SIDES = ("law", "law from Step Law", "unscaled", "muP", "Step Law", "random")
ABOUT = (
    "excess: loss above the best recorded run of the target, in percent of it. share: of the cost of 40 runs at the "
    "target. worse, better: the share of draws in which the law loses or gains more than 0.1 percent against unscaled. "
    "median: over targets. random: the mean of the best of as many runs at the target as the ladder costs. Intervals: "
    "90 %, over draws of the first runs."
)


@dataclass(frozen=True)
class Cell:
    """The finite runs of one size: learning rate, batch size in tokens, and loss, (n, 3)."""

    parameters: float
    tokens: float
    runs: np.ndarray

    @property
    def size(self) -> dict[str, float]:
        return {"N": self.parameters, "D": self.tokens}

    @property
    def cost(self) -> float:
        return self.parameters * self.tokens

    def find_nearest(self, setting: dict[str, float]) -> int:
        """Return the index of the run whose setting is nearest in logarithms."""
        apart = np.log(self.runs[:, :2] / [setting["lr"], setting["batch"]])
        return int(np.argmin((apart**2).sum(axis=1)))


def load_cells(folder: Path, group: str) -> list[Cell]:
    """Return the cells of a group of tables, the cheapest first."""
    cells = []
    for file in sorted(folder.glob(f"{group}*.npz")):
        with np.load(file, allow_pickle=False) as data:
            names, configs, losses = data["names"].tolist(), data["configs"], data["curves"][:, 0, -1]
            rates = data["lr_grid"] if "lr_grid" in data else configs[:, names.index("learning_rate")]
        if group.startswith("steplaw"):
            batch, tokens = configs[:, names.index("bs")] * TOKENS, configs[:, 1]
        else:
            batch = configs[:, names.index("train_batch_size")] * 4096
            tokens = configs[:, 1] * configs[:, 0] * CHINCHILLA
            others = [names.index(n) for n in names[2:] if n not in ("learning_rate", "train_batch_size")]
            tuned = np.zeros(len(configs), bool)
            for size in np.unique(configs[:, :2], axis=0):  # runs that change nothing else than the two
                own = np.flatnonzero((configs[:, :2] == size).all(axis=1))
                tuned[own] = (configs[own][:, others] == configs[own[0], others]).all(axis=1)
            losses = np.where(tuned, losses, np.nan)
        keys = np.stack([configs[:, 0], tokens], axis=1)
        for key in np.unique(keys, axis=0):
            own = (keys == key).all(axis=1) & np.isfinite(losses)
            cells.append(Cell(*map(float, key), np.stack([rates, batch, losses], axis=1)[own]))
    return sorted((cell for cell in cells if len(cell.runs) >= FEWEST), key=lambda cell: cell.cost)


def list_splits(cells: Sequence[Cell]) -> Iterator[tuple[Cell, list[Cell]]]:
    """Yield each target with its sources, at least two."""
    for target in cells:
        sources = [
            cell
            for cell in cells
            if cell.cost * SHARE <= target.cost
            and cell.parameters <= target.parameters
            and cell.tokens <= target.tokens
        ]
        if len(sources) > 1:
            yield target, sources


def climb(sources: Sequence[Cell], budget: float, exponents: Any, seed: int) -> tuple[list[SizedRun], Any, float]:
    """Return the runs of a ladder over `sources` for `budget`, its law, and the cost.

    Each size gets half as many runs as the one before it, in the same proportions for all budgets.
    """
    random = np.random.default_rng(seed)
    parameters = build_parameters(sources)
    share = budget / sum(cell.cost / 2**level for level, cell in enumerate(sources))
    runs, law, cost = list[SizedRun](), None, 0.0
    for level, cell in enumerate(sources):
        count = min(len(cell.runs), math.floor(share / 2**level))
        if count < FEWEST or cost + count * cell.cost > budget * 1.001:
            continue
        if law is None:
            chosen = random.choice(len(cell.runs), count, replace=False).tolist()
        else:
            small = min((run for run in runs), key=lambda run: (run.size["N"] * run.size["D"], run.loss))
            points = [small.values, *law.propose(cell.size, 4 * count)]
            chosen = list(dict.fromkeys(cell.find_nearest(point) for point in points))[:count]
        for rate, batch, loss in cell.runs[chosen]:
            runs.append(SizedRun(cell.size, {"lr": float(rate), "batch": float(batch)}, float(loss)))
        cost += len(chosen) * cell.cost
        law = fit_law(runs, parameters, exponents, draws=20)
    return runs, law, cost


def build_parameters(cells: Sequence[Cell]) -> list[ScaledParameter]:
    """Return the ranges of the sources alone: those of the target are not known before it is run."""
    ends = [(cell.runs[:, :2].min(axis=0), cell.runs[:, :2].max(axis=0)) for cell in cells]
    low, high = np.min([end[0] for end in ends], axis=0), np.max([end[1] for end in ends], axis=0)
    return [
        ScaledParameter(name, float(low[i]), float(max(high[i], 2 * low[i])), True)
        for i, name in enumerate(("lr", "batch"))
    ]


def measure(target: Cell, sources: Sequence[Cell], budget_runs: float, seed: int) -> dict[str, float]:
    """Return the excess of each side in percent, and the share of the direct search that the ladder cost."""
    best = target.runs[:, 2].min()

    def excess(setting: dict[str, float]) -> float:
        return float(100 * (target.runs[target.find_nearest(setting), 2] / best - 1))

    budget = budget_runs * target.cost
    runs, law, cost = climb(sources, budget, None, seed)
    _, prior_law, _ = climb(sources, budget, STEP_LAW, seed)
    if law is None or prior_law is None:
        return {}
    small = min(runs, key=lambda run: (run.size["N"] * run.size["D"], run.loss))
    ratio = target.parameters / small.size["N"]
    step_law = {
        "lr": 1.79 * target.parameters**-0.713 * target.tokens**0.307,
        "batch": 0.58 * target.tokens**0.571,
    }
    settings = {
        "law": {name: each.value for name, each in law.predict(target.size).items()},
        "law from Step Law": {name: each.value for name, each in prior_law.predict(target.size).items()},
        "unscaled": dict(small.values),
        "muP": {**small.values, "lr": small.values["lr"] * ratio**-WIDTH},
        "Step Law": step_law,
    }
    found = {name: excess(setting) for name, setting in settings.items()}
    found["random"] = expected_best(target, cost / target.cost)
    return found | {"share": cost / target.cost / DIRECT}


def expected_best(target: Cell, count: float) -> float:
    """Return the mean excess of the best of `count` different runs, rounded down to at least one, in percent."""
    losses = np.sort(target.runs[:, 2])
    total, drawn = len(losses), min(len(losses), max(1, math.floor(count)))
    ways = [math.comb(total - 1 - rank, drawn - 1) / math.comb(total, drawn) for rank in range(total)]
    return float(100 * (np.dot(ways, losses) / losses[0] - 1))


@cache
def _describe(size: float) -> str:
    return f"{size / 1e9:.3g}B"


def _format_row(row: dict[str, Any]) -> str:
    shown = (f"{name} {value:.3g}" if isinstance(value, float) else str(value) for name, value in row.items())
    return ", ".join(text for text in shown if " low " not in text and " high " not in text)


def main() -> None:
    parser = create_parser(__doc__)
    parser.add_argument("--problems-from", type=Path, required=True, metavar="FOLDER", help="the folder of the tables")
    parser.add_argument("--groups", default="development,held-out")
    parser.add_argument("--budgets", default="2,4", help="of the ladder, in runs at the target")
    parser.add_argument("--draws", type=int, default=50, help="of the first runs")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    summary: list[dict[str, Any]] = []
    for part, groups in (("development", DEVELOPMENT), ("held-out", HELD_OUT)):
        if part not in given.groups.split(","):
            continue
        for budget in map(float, given.budgets.split(",")):
            first = len(rows)
            for group in groups:
                for target, sources in list_splits(load_cells(given.problems_from, group)):
                    found = [measure(target, sources, budget, seed) for seed in range(given.draws)]
                    if not found[0]:
                        continue
                    row: dict[str, Any] = {"part": part, "group": group, "budget": budget, "sources": len(sources)}
                    row |= {"parameters": _describe(target.parameters), "tokens": _describe(target.tokens)}
                    for side in (*SIDES, "share"):
                        values = [each[side] for each in found]
                        low, high = np.quantile(values, (0.05, 0.95))
                        row |= {side: float(np.mean(values)), f"{side} low": float(low), f"{side} high": float(high)}
                    row["worse"] = float(np.mean([each["law"] > each["unscaled"] + NOISE for each in found]))
                    row["better"] = float(np.mean([each["law"] < each["unscaled"] - NOISE for each in found]))
                    rows.append(row)
                    print_progress(_format_row(row))
            for kind in ("steplaw", "marin", ""):
                own = [row for row in rows[first:] if row["group"].startswith(kind)]
                if own:
                    row = {"part": part, "tables": kind or "all", "budget": budget, "targets": len(own)}
                    row |= {side: float(np.mean([each[side] for each in own])) for side in (*SIDES, "share")}
                    row |= {f"{side} median": float(np.median([each[side] for each in own])) for side in SIDES}
                    row |= {name: float(np.mean([each[name] for each in own])) for name in ("worse", "better")}
                    row["within 0.5 %"] = float(np.mean([each["law"] <= 0.5 for each in own]))
                    summary.append(row)
                    print_progress(_format_row(row))
    if not rows:
        sys.exit(f"--problems-from must have tables of language models, but {given.problems_from} has none.")
    print_result({"summary": summary, "targets": rows}, {}, ABOUT)


if __name__ == "__main__":
    main()
