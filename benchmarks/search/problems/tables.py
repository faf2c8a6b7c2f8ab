"""Problems that replay tables of recorded trainings of others, read from a folder.

A table is an `.npz` file with the space, the configs, their curves with several seeds, and a documented default. The
sources of the tables are those of docs/development/search-quality.md. A trial replays a random run of the nearest
recorded config.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import create_model

from benchmarks.search.problems.problems import EPOCH_S, Curve, Problem, Values
from searchlight.search.space.search_space import resolve_space
from searchlight.trainables.task import TaskConfig, searchable

Array = NDArray[np.float64]
RAN, DIVERGED, TARGET = range(3)  # how a run ended; it has no value, or broke off, if it ended in another way
WORST = 0.9  # the quantile of finite final values that is the worst one
# Families in whole, but for half of the tables of LCBench. The choice of the default is based on these alone. The split
# was written on 25 November 2026, before any table was searched here.
DEVELOPMENT = ("taskset",)
HALVED = "lcbench"


def is_held_out(name: str) -> bool:
    """Return whether no choice is based on the table `name`. Half of LCBench is held out: odd numbers of data sets."""
    family, _, rest = name.partition("_")
    return int(rest) % 2 == 1 if family == HALVED else family not in DEVELOPMENT


class RecordedTable:
    """A table with its objective as a loss, (configs, runs, steps), and a mask of the runs that count."""

    def __init__(self, file: Path) -> None:
        with np.load(file, allow_pickle=False) as found:
            data = {key: found[key] for key in found.files}
        self.name = file.stem
        self.meta: dict[str, Any] = json.loads(str(data["meta"]))
        self.names: list[str] = data["names"].tolist()
        self.kinds: list[str] = data["kinds"].tolist()
        self.choices: list[list[Any] | None] = json.loads(str(data["choices"]))
        self.log, self.low, self.high = data["log"], data["low"], data["high"]
        self.default = data["default"]
        ran = np.isin(data["ended"], (RAN, DIVERGED, TARGET))
        kept = ran.any(1)
        self.default_row = int(kept[: int(data["default_index"])].sum())  # of those that are kept
        sign = 1.0 if str(data["mode"]) == "min" else -1.0
        self.configs: Array = data["configs"][kept].astype(float)
        self.losses: Array = sign * data["curves"][kept].astype(float)
        self.ran = ran[kept]
        cost = data["cost"]
        self.seconds: Array = np.ones(self.ran.shape)  # of a step
        if cost.size > 1:
            recorded = cost[kept] if cost.ndim == 2 else cost[kept][:, None]
            self.seconds = np.where(np.isfinite(recorded), recorded, np.nanmedian(recorded)) * self.seconds
        self.has_target = "time_to_target" in data
        if self.has_target:
            target = sign * float(self.meta["validation_target"])
            self.losses = _rank_by_target(self.losses, data["time_to_target"][kept], target)


def _rank_by_target(losses: Array, share: Array, target: float) -> Array:
    """Return losses below 1 once a run has reached its target, by the time that it took, and above 1 before.

    Args:
        losses: (configs, runs, steps). A run that stopped at its target holds its last value.
        share: The share of the longest time after which a run reached its target, or NaN. (configs, runs).
        target: The loss to reach.
    """
    steps = losses.shape[-1]
    spread = np.nanquantile(losses[..., -1], WORST) - target
    before = 1 + np.clip((losses - target) / max(spread, 1e-12), 0, 1)
    reached = np.arange(1, steps + 1) / steps >= share[..., None]
    return np.where(np.isnan(losses), np.nan, np.where(reached, share[..., None], before))


def build_from_table(file: Path) -> Problem:
    """Return the problem that replays the table in `file`. All steps are longer by the same factor.

    The quality of a checkpoint is the mean over the runs of its config, since the seed of a run is noise. The time to a
    target is that of a whole run, and no checkpoint has one. So a table with a target judges configs.

    Raises:
        ValueError: The table has no curves.
    """
    table = RecordedTable(file)
    steps = table.losses.shape[-1]
    if steps < 3:
        raise ValueError(f"{file} must have curves, but has {steps} step(s).")
    runs = np.where(table.ran[..., None], table.losses, np.nan)
    counts = np.isfinite(runs).sum(1)
    clean = np.where(counts > 0, np.nansum(runs, axis=1) / np.maximum(counts, 1), np.nan)  # (configs, steps)
    diverges = (np.isnan(table.losses[..., -1]) & table.ran).any(1)
    longer = EPOCH_S / float(np.median(table.seconds[table.ran]))
    curves = [
        [
            Curve(
                table.losses[config, run].tolist(),
                clean[config].tolist(),
                longer * float(table.seconds[config, run]),
                math.inf if diverges[config] else float(clean[config, -1]),
            )
            for run in np.flatnonzero(table.ran[config])
        ]
        for config in range(len(table.configs))
    ]
    places = _place(table, table.configs)
    is_choice = np.array(table.kinds) == "choice"

    def curve(values: Values, draw: np.random.Generator) -> Curve:
        codes = [
            choices.index(values[name]) if choices else float(values[name])
            for name, choices in zip(table.names, table.choices, strict=True)
        ]
        apart = places - _place(table, np.array([codes]))
        apart = np.where(is_choice, apart != 0, np.nan_to_num(apart))  # a parameter that a config lacks has no distance
        of_config = curves[int((apart**2).sum(1).argmin())]
        return of_config[int(draw.integers(len(of_config)))]

    best = float(np.nanmin(clean))
    ends = clean[:, -1]
    worst = float(np.quantile(ends[np.isfinite(ends)], WORST))
    space = resolve_space(_build_config(table), {"epochs": steps, "precision": "fp32"}, {})
    delivered: Literal["checkpoint", "config"] = "config" if table.has_target else "checkpoint"
    return Problem(table.name, is_held_out(table.name), space, steps, best, worst, curve, delivered)


def _place(table: RecordedTable, configs: Array) -> Array:
    """Return configs in the unit cube, but for the codes of choices."""
    logarithms = np.log(np.where(table.log, np.maximum(configs, table.low), 1.0))
    low, high = (np.where(table.log, np.log(np.where(table.log, ends, 1.0)), ends) for ends in (table.low, table.high))
    scaled = (np.where(table.log, logarithms, configs) - low) / np.where(high > low, high - low, 1.0)
    return np.where(np.array(table.kinds) == "choice", configs, scaled)


def _build_config(table: RecordedTable) -> type[TaskConfig]:
    fields: dict[str, Any] = {}
    columns = zip(table.names, table.kinds, table.log, table.low, table.high, table.choices, table.default, strict=True)
    for name, kind, log, low, high, choices, default in columns:
        if choices:
            fields[name] = (type(choices[0]), searchable(choices[int(default)], choices=choices))
        else:
            number = int if kind == "int" else float
            value = number(min(max(default, low), high))
            fields[name] = (number, searchable(value, low=number(low), high=number(high), log=bool(log)))
    return create_model("TableConfig", __base__=TaskConfig, **fields)


def list_tables(folder: Path) -> Mapping[str, Path]:
    """Return the tables in `folder` that have curves of trainings, by name."""
    families = ("algoperf", "deepobs", "hporl", "lcbench", "taskset")
    return {file.stem: file for file in sorted(folder.glob("*.npz")) if file.stem.split("_")[0] in families}


def find_source(name: str, names: Iterable[str]) -> str | None:
    """Return the next table of the family and side of the split of table `name`, or None if there is no other."""
    family = name.split("_")[0]
    alike = sorted(o for o in names if o.split("_")[0] == family and is_held_out(o) == is_held_out(name))
    return alike[(alike.index(name) + 1) % len(alike)] if len(alike) > 1 else None
