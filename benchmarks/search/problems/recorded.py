"""Tables of real trainings with several seeds in fp32 and bf16, and the problems that replay them.

Each config of a table is trained to the end under each seed, in each precision or in one of them.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optuna
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from benchmarks.search.problems.language import SmallLm, SmallLmConfig
from benchmarks.search.problems.problems import EPOCH_S, Curve, Problem, Values, all_problems
from benchmarks.search.problems.small_tasks import Small, SmallConfig
from benchmarks.search.problems.table import fill_table, load_table
from searchlight.search.space.flatten import flatten
from searchlight.search.space.search_space import Parameter, Space, resolve_space
from searchlight.trainables.liquid import LiquidTask
from searchlight.trainables.liquid.config import LiquidConfig
from searchlight.trainables.precision import Diverged
from searchlight.trainables.task import Task, TaskConfig
from searchlight.trainables.training.trainer import train

RESULTS = Path(__file__).resolve().parents[2] / "results"


@dataclass(frozen=True)
class Recording:
    """A task whose trainings are recorded.

    Attributes:
        fixed: The parameters that are not searched, by dotted name. Precision and seed vary in addition to the search.
        metric, mode: The objective of searches and its direction.
        quality: The metric of a checkpoint's quality. It is `metric` if there is no test set.
        worst: The value of a diverged training, in `metric` as a loss.
        held_out: Whether it was fixed before anything was recorded; see docs/search-quality.md.
        ranges: Ranges that differ from those of the task, in the format of --search.
        alternates: Whether each config is trained in one precision, in turn. Otherwise it is trained in all of them.
    """

    task: type[Task[Any]]
    config: type[TaskConfig]
    metric: str
    mode: str
    quality: str
    worst: float
    held_out: bool
    fixed: Mapping[str, Any] = field(default_factory=dict)
    ranges: Mapping[str, str] = field(default_factory=dict)
    configs: int = 300
    seeds: int = 3
    precisions: tuple[str, ...] = ("fp32", "bf16")
    alternates: bool = False

    @property
    def trainings(self) -> int:
        """The number of trainings of a complete table."""
        return len(self.list_runs(self.configs))

    def list_runs(self, count: int) -> "list[Run]":
        """Return the trainings of the first `count` configs, seed by seed, so that seeds are complete one by one."""
        return [
            Run(number, seed, precision)
            for seed in range(self.seeds)
            for number in range(count)
            for place, precision in enumerate(self.precisions)
            if not self.alternates or number % len(self.precisions) == place
        ]

    @property
    def metrics(self) -> tuple[str, ...]:
        """The recorded metrics."""
        return tuple(dict.fromkeys((self.metric, self.quality)))

    @property
    def parameters(self) -> list[Parameter]:
        """The varied parameters, without precision and without those that the fixed values disable."""
        space = self.build_space(precision="fp32")
        fixed = space.fixed_values()
        return [parameter for parameter in space.parameters if parameter.is_active(fixed)]

    def build_space(self, searched: Mapping[str, str] | None = None, **fixed: Any) -> Space:
        return resolve_space(self.config, {**self.fixed, **fixed}, {**self.ranges, **(searched or {})})


STATIONARY = {  # all digits at once: no stream of tasks, and what belongs to one
    **{"continual.tasks": 1, "epochs": 27, "plasticity.rule": "none", "consolidation.method": "none"},
    **{"replay.fraction": 0.0, "replay.size": 100, "replay.logits_weight": 0.0},
}


def _describe_small(
    data: str,
    metric: str,
    worst: float,
    held_out: bool,
    searched: str,
    precisions: tuple[str, ...] = ("fp32",),
    ranges: Mapping[str, str] | None = None,
    configs: int = 100,
    **fixed: Any,
) -> Recording:
    """Return the recording of a small task that varies the parameters `searched` and fixes the others."""
    fields, names = SmallConfig.model_fields, searched.split()
    others = {name: fields[name].default for name in SmallConfig.__annotations__ if name not in names}
    values = {"accumulation": 1, "max_grad_norm": None, **others, "data": data, **fixed}
    metrics = (f"val/{metric}", "min", f"test/{metric}")
    return Recording(Small, SmallConfig, *metrics, worst, held_out, values, ranges or {}, configs, 2, precisions)


SGD: dict[str, Any] = {"optimizer": "sgd", "ranges": {"lr": "1e-3..3:log"}}
RECORDINGS = {
    "liquid": Recording(
        LiquidTask,
        LiquidConfig,
        "val/score",
        "max",
        "val/score",
        0.9,
        held_out=False,
        fixed=STATIONARY,
        alternates=True,
    ),
    "lm": Recording(
        SmallLm,
        SmallLmConfig,
        "val/bpb",
        "min",
        "test/bpb",
        8.0,
        held_out=True,
        fixed={"accumulation": 1, "max_grad_norm": None},
        alternates=True,
    ),
    "noisy": _describe_small("noisy-digits", "error", 0.9, False, "lr momentum weight_decay dropout width", **SGD),
    "linear": _describe_small("cancer", "loss", 0.7, False, "lr momentum weight_decay batch", model="linear", **SGD),
    "gru": _describe_small("waves", "loss", 1.5, False, "lr width warmup weight_decay", model="gru"),
    "friedman": _describe_small("friedman", "loss", 1.2, False, "lr weight_decay width depth dropout"),
    "autoencoder": _describe_small("digits", "loss", 0.15, False, "lr momentum dropout width", model="autoencoder"),
    "conv": _describe_small(
        "digits", "error", 0.9, True, "lr momentum weight_decay dropout width", model="conv", **SGD
    ),
    "attention": _describe_small("recall", "loss", 1.5, True, "lr width warmup weight_decay", model="attention"),
    "diabetes": _describe_small("diabetes", "loss", 1.2, True, "lr weight_decay dropout width batch"),
    "features": _describe_small(
        "moons", "loss", 0.7, True, "lr weight_decay width gain", ("fp32", "bf16"), model="features", **SGD
    ),
    "deep": _describe_small("digits", "loss", 2.4, True, "lr momentum gain warmup", depth=5, **SGD),
}


class Run(NamedTuple):
    """One training of a table: configuration `number`, trained under `seed` in `precision`."""

    number: int
    seed: int
    precision: str


def get_table_path(name: str) -> Path:
    return RESULTS / f"curves_{name}.parquet"


def draw_configs(recording: Recording, count: int) -> list[dict[str, Any]]:
    """Return the values of `count` configs. A larger `count` starts with the same configs.

    Numbers are from a sequence that covers the space evenly, and choices are random.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.QMCSampler(seed=0, scramble=True, warn_independent_sampling=False)
    study = optuna.create_study(sampler=sampler)
    space, drawn = recording.build_space(precision="fp32"), []
    for _ in range(count):
        trial = study.ask()
        drawn.append(space.suggest(trial))
        study.tell(trial, 0.0)
    return drawn


def build_schema(recording: Recording) -> pa.Schema:
    """Return the columns of the table: the run, its values, the seconds of an epoch, and the curves."""
    kinds = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    sample = flatten(recording.build_space(precision="fp32").build_config({}).model_dump(mode="json"))
    names = [parameter.name for parameter in recording.parameters]
    return pa.schema(
        [("number", pa.int32()), ("seed", pa.int32()), ("precision", pa.string())]
        + [(name, kinds[type(sample[name])]) for name in names]
        + [("seconds", pa.float32()), *((metric, pa.list_(pa.float32())) for metric in recording.metrics)]
    )


def train_run(name: str, configs: Sequence[Mapping[str, Any]], run: Run) -> dict[str, Any]:
    """Train one run to its end in one thread and return its row. Curves are NaN from the epoch of divergence on.

    `seconds` is the CPU time of an epoch, including evaluation.
    """
    torch.set_num_threads(1)
    recording = RECORDINGS[name]
    space = recording.build_space(precision=run.precision, seed=run.seed)
    config = space.build_config(configs[run.number])
    curves: dict[str, list[float]] = {metric: [] for metric in recording.metrics}
    start = time.process_time()
    with suppress(Diverged):
        for report in train(recording.task(config)):
            for metric, values in curves.items():
                values.append(report[metric])
    seconds = (time.process_time() - start) / min(config.epochs, len(curves[recording.metric]) + 1)  # type: ignore[attr-defined]
    padded = {metric: values + [math.nan] * (config.epochs - len(values)) for metric, values in curves.items()}  # type: ignore[attr-defined]
    return {**run._asdict(), **configs[run.number], "seconds": seconds, **padded}


def record(
    name: str,
    file: Path,
    count: int | None = None,
    processes: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Train the runs of `count` configs of task `name` that are missing in `file` (default: all configs)."""
    recording = RECORDINGS[name]
    count = count or recording.configs
    runs = recording.list_runs(count)
    rows = {Run(row["number"], row["seed"], row["precision"]): row for row in load_table(file)}
    make_row = partial(train_run, name, draw_configs(recording, count))
    fill_table(file, build_schema(recording), rows, runs, make_row, processes, say)


def replayed(name: str, file: Path | None = None) -> Problem:
    """Return the problem that replays the table of task `name`. A config has the curve of the nearest recorded one.

    The seed that a trial replays is random. All epochs are longer by the same factor, so that their median is a minute.

    Raises:
        FileNotFoundError: There is no such table. record_curves.py records it.
    """
    recording = RECORDINGS[name]
    rows = load_table(file or get_table_path(name))
    if not rows:
        raise FileNotFoundError(f"{file or get_table_path(name)} must be recorded first, by record_curves.py.")
    precisions = recording.precisions
    several = len(precisions) > 1
    space = recording.build_space(
        {"precision": ",".join(precisions)} if several else None, **({} if several else {"precision": precisions[0]})
    )
    parameters = recording.parameters
    longer = EPOCH_S / float(np.median([row["seconds"] for row in rows]))
    curves: dict[str, dict[int, list[Curve]]] = {precision: {} for precision in precisions}
    for row in rows:
        curves[row["precision"]].setdefault(row["number"], []).append(_build_curve(recording, row, longer))
    values_of = {row["number"]: row for row in rows}
    numbers = {precision: list(found) for precision, found in curves.items()}
    places = {p: np.array([_place(parameters, values_of[number]) for number in numbers[p]]) for p in precisions}

    def curve(values: Values, draw: np.random.Generator) -> Curve:
        precision = values.get("precision", precisions[0])
        distance = ((places[precision] - _place(parameters, values)) ** 2).sum(1)
        of_config = curves[precision][numbers[precision][int(distance.argmin())]]
        return of_config[int(draw.integers(len(of_config)))]

    everything = [each for of_precision in curves.values() for found in of_precision.values() for each in found]
    best = min(value for each in everything for value in each.clean if not math.isnan(value))
    epochs = len(everything[0].values)
    return Problem(name, recording.held_out, space, epochs, best, recording.worst, curve)


def list_problems() -> list[Problem]:
    """Return all problems that can be searched: `all_problems`, and those whose tables are recorded in full."""
    tables = {name: get_table_path(name) for name in RECORDINGS}
    in_full = [
        name
        for name, table in tables.items()
        if table.exists() and pq.read_metadata(table).num_rows >= RECORDINGS[name].trainings
    ]
    return [*all_problems(), *(replayed(name) for name in in_full)]


def _build_curve(recording: Recording, row: Mapping[str, Any], longer: float) -> Curve:
    values, clean = (
        [value if recording.mode == "min" else 1.0 - value for value in row[metric]]
        for metric in (recording.metric, recording.quality)
    )
    return Curve(values, clean, longer * row["seconds"], math.inf if math.isnan(clean[-1]) else clean[-1])


def _place(parameters: Sequence[Parameter], values: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return a point in the unit cube. The distance of two choices is that of the ends of a range."""
    place: list[float] = []
    for parameter in parameters:
        distribution, value = parameter.distribution, values[parameter.name]
        if isinstance(distribution, CategoricalDistribution):
            place += [math.sqrt(0.5) * (value == choice) for choice in distribution.choices]
        else:
            assert isinstance(distribution, FloatDistribution | IntDistribution)
            scale = math.log if distribution.log else float
            low, high = scale(distribution.low), scale(distribution.high)
            place.append((scale(value) - low) / (high - low))
    return np.array(place)
