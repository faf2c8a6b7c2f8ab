"""Problems that replay recorded trainings with several seeds in fp32 and bf16.

Each config of a table was trained to the end under each seed, in each precision or in one of them. The scripts that
recorded the tables are those of commit a0a0c41.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from benchmarks.recording import RESULTS
from benchmarks.search.problems.problems import EPOCH_S, Curve, Problem, Values, build_problems
from benchmarks.search.problems.recorded_configs import DigitsConfig, SmallConfig, SmallLmConfig
from benchmarks.search.table import load_table
from searchlight.search.space.search_space import Parameter, Space, resolve_space
from searchlight.trainables.liquid.config import LiquidConfig
from searchlight.trainables.task import TaskConfig


@dataclass(frozen=True)
class Recording:
    """The table of a task whose trainings are recorded.

    Attributes:
        fixed: The parameters that are not searched, by dotted name. Precision and seed vary in addition to the search.
        metric, mode: The objective of searches and its direction.
        quality: The metric of a checkpoint's quality. It is `metric` if there is no test set.
        worst: The value of a diverged training, in `metric` as a loss.
        held_out: Whether it was fixed before anything was recorded; see docs/development/search-quality.md.
        ranges: Ranges that differ from those of the task, in the format of --search.
    """

    config: type[TaskConfig]
    metric: str
    mode: str
    quality: str
    worst: float
    held_out: bool
    fixed: Mapping[str, Any] = field(default_factory=dict)
    ranges: Mapping[str, str] = field(default_factory=dict)
    precisions: tuple[str, ...] = ("fp32", "bf16")

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
    **fixed: Any,
) -> Recording:
    """Return the recording of a small task that varies the parameters `searched` and fixes the others."""
    fields, names = SmallConfig.model_fields, searched.split()
    others = {name: fields[name].default for name in SmallConfig.__annotations__ if name not in names}
    values = {"accumulation": 1, "max_grad_norm": None, **others, "data": data, **fixed}
    metrics = (f"val/{metric}", "min", f"test/{metric}")
    return Recording(SmallConfig, *metrics, worst, held_out, values, ranges or {}, precisions)


SGD: dict[str, Any] = {"optimizer": "sgd", "ranges": {"lr": "1e-3..3:log"}}
RECORDINGS = {
    "digits": Recording(
        DigitsConfig, "val/loss", "min", "val/loss", 2.5, held_out=False, precisions=("fp32", "bf16", "fp16")
    ),
    "liquid": Recording(LiquidConfig, "val/score", "max", "val/score", 0.9, held_out=False, fixed=STATIONARY),
    "lm": Recording(
        SmallLmConfig,
        "val/bpb",
        "min",
        "test/bpb",
        8.0,
        held_out=True,
        fixed={"accumulation": 1, "max_grad_norm": None},
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


def get_table_path(name: str) -> Path:
    return RESULTS / f"curves_{name}.parquet"


def build_replayed(name: str, file: Path | None = None) -> Problem:
    """Return the problem that replays the table of task `name`. A config has the curve of the nearest recorded one.

    The seed that a trial replays is random. All epochs are longer by the same factor, so that their median is a minute.

    """
    recording = RECORDINGS[name]
    rows = load_table(file or get_table_path(name))
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
    """Return all problems that can be searched."""
    return [*build_problems(), *(build_replayed(name) for name in RECORDINGS)]


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
