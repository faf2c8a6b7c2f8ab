"""What is searched: a space, and for each config the curve that its training would follow.

Each is deterministic but for the noise of an evaluation. A regret is what the config's value after all its epochs,
without noise, is above the best that there is.
"""

import csv
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import optuna

from search.config.search_space import Space, resolve_space
from trainables.task import TaskConfig

from . import curves, digits, hartmann

Values = Mapping[str, Any]
OBJECTIVE = "val/loss"
EPOCH_S = 60.0


@dataclass(frozen=True)
class Curve:
    """The training of one config.

    Attributes:
        values: The objective after each epoch as it is measured; NaN from the epoch on in which it diverges.
        seconds: Of one epoch.
        final: The objective after all epochs without noise, infinite if it diverges before.
    """

    values: list[float]
    seconds: float
    final: float

    @property
    def diverges(self) -> bool:
        return math.isnan(self.values[-1])


@dataclass(frozen=True)
class Problem:
    """Something to search.

    Attributes:
        held_out: Nothing was chosen by looking at it.
        best, worst: The value of the best config, and what a config counts as that diverges.
    """

    name: str
    held_out: bool
    space: Space
    epochs: int
    best: float
    worst: float
    curve: Callable[[Values, np.random.Generator], Curve]

    @cached_property
    def seconds(self) -> float:
        """What a full training takes, the median over configs drawn at random: what budgets are told in."""
        draw = np.random.default_rng(0)
        return self.epochs * float(np.median([self.curve(self.draw(draw), draw).seconds for _ in range(200)]))

    def draw(self, draw: np.random.Generator) -> dict[str, Any]:
        """A config at random."""
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(int(draw.integers(2**31))))
        return self.space.suggest(study.ask())

    def regret(self, curve: Curve) -> float:
        return min(curve.final, self.worst) - self.best


def closed_form(form: type[curves.Form], held_out: bool) -> Problem:
    def curve(values: Values, draw: np.random.Generator) -> Curve:
        clean, seconds, diverges_at = form.train(values)
        noise = form.noise * draw.standard_normal(form.epochs)
        seen = [v + n if e < diverges_at else math.nan for e, (v, n) in enumerate(zip(clean, noise, strict=True), 1)]
        return Curve(seen, seconds, clean[-1] if diverges_at > form.epochs else math.inf)

    name = form.__name__.lower()
    return Problem(name, held_out, _space(form.config, form.epochs), form.epochs, form.best, form.worst, curve)


def mf_hartmann(dimensions: int, kind: str, held_out: bool) -> Problem:
    epochs = 27
    names = [f"x{i}" for i in range(dimensions)]

    def curve(values: Values, draw: np.random.Generator) -> Curve:
        x = np.array([values[name] for name in names])
        seen = [hartmann.value(x, epoch / epochs, kind, draw) for epoch in range(1, epochs + 1)]
        return Curve(seen, EPOCH_S, hartmann.value(x, 1.0, kind, draw))

    config = hartmann.Config3 if dimensions == 3 else hartmann.Config6
    best = hartmann.BEST[dimensions]
    space = _space(config, epochs, precision="fp32")
    return Problem(f"hartmann{dimensions}-{kind}", held_out, space, epochs, best, 0.0, curve)


def tabulated(held_out: bool) -> Problem:
    """The recorded runs of benchmarks/quality/digits.py: a config has the curve of the one nearest to it.

    All epochs are made longer by the same factor, as if the model were larger.
    """
    with open(digits.TABLE, newline="") as file:
        rows = list(csv.DictReader(file))
    space = _space(digits.DigitsConfig, digits.EPOCHS)
    numbers = [p for p in space.parameters if p.name != "precision"]

    def place(values: Values) -> list[float]:
        """In the unit cube."""
        found = []
        for p in numbers:
            scale = math.log if p.distribution.log else float  # type: ignore[attr-defined]
            low, high = scale(p.distribution.low), scale(p.distribution.high)  # type: ignore[attr-defined]
            found.append((scale(float(values[p.name])) - low) / (high - low))
        return found

    longer = EPOCH_S / float(np.median([float(row["seconds"]) for row in rows]))
    recorded = []
    for row in rows:
        values = [float(row[str(epoch)]) for epoch in range(1, digits.EPOCHS + 1)]
        final = math.inf if math.isnan(values[-1]) else values[-1]
        recorded.append(Curve(values, longer * float(row["seconds"]), final))
    by_precision = {
        precision: [i for i, row in enumerate(rows) if row["precision"] == precision]
        for precision in ("fp32", "bf16", "fp16")
    }
    places = np.array([place(row) for row in rows])

    def curve(values: Values, draw: np.random.Generator) -> Curve:
        among = by_precision[values["precision"]]
        distance = ((places[among] - place(values)) ** 2).sum(1)
        return recorded[among[int(distance.argmin())]]

    best = min(c.final for c in recorded)
    return Problem("digits", held_out, space, digits.EPOCHS, best, 2.5, curve)


def _space(config: type[TaskConfig], epochs: int, **fixed: Any) -> Space:
    return resolve_space(config, {"epochs": epochs, **fixed}, {})


def all_problems() -> list[Problem]:
    """First those that settings were chosen on, then those that they were not."""
    return [
        mf_hartmann(3, "good", held_out=False),
        mf_hartmann(6, "bad", held_out=False),
        closed_form(curves.Cliff, held_out=False),
        closed_form(curves.Crossing, held_out=False),
        closed_form(curves.Curriculum, held_out=False),
        mf_hartmann(6, "good", held_out=True),
        mf_hartmann(3, "terrible", held_out=True),
        closed_form(curves.Finetune, held_out=True),
        closed_form(curves.Annealed, held_out=True),
        tabulated(held_out=True),
    ]
