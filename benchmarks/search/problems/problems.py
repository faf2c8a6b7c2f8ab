"""The problems: each has a search space, and for each config the curve of its training.

A problem is deterministic except for the noise of an evaluation. The regret is the difference of the quality of what a
side delivers, without noise, from the best possible quality.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution

from benchmarks.search.problems import curves, hartmann
from searchlight.search.private_api import SearchSpaceTransform
from searchlight.search.samplers.perturbation import resample
from searchlight.search.space.search_space import Space, resolve_space
from searchlight.trainables.task import TaskConfig

Values = Mapping[str, Any]
OBJECTIVE = "val/loss"
EPOCH_S = 60.0
OPTIMIZED = 5000  # random configs, whose best one counts as the optimum
RANKED = 200  # random configs, among which good and wrong defaults are chosen
QUANTILES = {"good": 0.02, "wrong": 0.9}
DEFAULTS = ("none", "documented", *QUANTILES)


@dataclass(frozen=True)
class Curve:
    """The training of one config.

    Attributes:
        values: The measured objective after each epoch, and NaN from the epoch of divergence on.
        clean: The objective after each epoch without noise. It is the quality of that epoch's checkpoint.
        seconds: The seconds of one epoch.
        final: The objective after all epochs without noise, or infinity if it diverges.
    """

    values: list[float]
    clean: list[float]
    seconds: float
    final: float

    @property
    def diverges(self) -> bool:
        return math.isnan(self.values[-1])


@dataclass(frozen=True, eq=False)
class Problem:
    """A search problem. Two are never equal, so that results can be kept by problem.

    Attributes:
        held_out: Whether no choice of ours was based on its results.
        best, worst: The best value that can be delivered, and the value of a config that diverges.
        delivered: What a side is judged by. "checkpoint": the quality of the delivered checkpoint, where the checkpoint
            of any epoch can be used. "config": the value of the delivered config after all epochs. This is for
            problems without real training (`hartmann`), or with another evaluation in early epochs (`curriculum`).
        defaults: The config that every side tries first, or None if no side knows one.
        source: Another problem with the same parameters, whose search a warm start learns from.
    """

    name: str
    held_out: bool
    space: Space
    epochs: int
    best: float
    worst: float
    curve: Callable[[Values, np.random.Generator], Curve]
    delivered: Literal["checkpoint", "config"] = "checkpoint"
    defaults: Values | None = None
    source: "Problem | None" = None

    @cached_property
    def seconds(self) -> float:
        """The seconds of a full training, the median over random configs. It is the unit of budgets."""
        draw = np.random.default_rng(0)
        return self.epochs * float(np.median([self.curve(self.draw(draw), draw).seconds for _ in range(200)]))

    def draw(self, draw: np.random.Generator) -> dict[str, Any]:
        """Draw a random config."""
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(int(draw.integers(2**31))))
        return self.space.suggest(study.ask())

    def give_defaults(self, quality: str, seed: int) -> "Problem":
        """Return the problem with `defaults` of a quality, one of DEFAULTS.

        Good and wrong ones are those at the given quantile of random configs, which are others for each seed.
        """
        if quality == "none":
            return self
        if quality == "documented":
            return replace(self, defaults=self.space.get_defaults())
        draw, random = np.random.default_rng((seed, self.epochs)), Random(seed)
        configs = [self.space.choose(lambda p: resample(p.distribution, random)) for _ in range(RANKED)]
        finals = [min(self.curve(config, draw).final, self.worst) + 1e-9 * draw.random() for config in configs]
        return replace(self, defaults=configs[int(np.argsort(finals)[int(QUANTILES[quality] * RANKED)])])

    @cached_property
    def optimum(self) -> dict[str, Any]:
        """The best of OPTIMIZED random configs by its value after all epochs."""
        draw, random = np.random.default_rng(0), Random(0)
        configs = (self.space.choose(lambda p: resample(p.distribution, random)) for _ in range(OPTIMIZED))
        return min(configs, key=lambda config: self.curve(config, draw).final)

    def find_point(self, shift: float, seed: int) -> dict[str, Any]:
        """Return the optimum with each number moved by `shift` of its range. From 0.5 on, choices are others, too."""
        random, moved = Random(seed), self.optimum
        for parameter in self.space.parameters:
            name, distribution = parameter.name, parameter.distribution
            if name not in moved or distribution.single():
                continue
            if isinstance(distribution, CategoricalDistribution):
                others = [choice for choice in distribution.choices if choice != moved[name]]
                moved = {**moved, name: random.choice(others) if shift >= 0.5 else moved[name]}
                continue
            transform = SearchSpaceTransform({name: distribution}, transform_0_1=True)
            place = transform.transform({name: moved[name]})
            up = random.random() < 0.5 if shift <= min(place[0], 1 - place[0]) else bool(place[0] < 0.5)
            place[0] = np.clip(place[0] + (shift if up else -shift), 0.0, 1.0)
            moved = {**moved, name: transform.untransform(place)[name]}
        return moved

    def can_deliver(self, curve: Curve) -> bool:
        """Return whether a trial with this `curve`, which has a finite report, delivers something.

        A delivered config must not diverge in its full training. A checkpoint with a finite report can always be
        delivered.
        """
        return self.delivered == "checkpoint" or not curve.diverges

    def regret(self, curve: Curve, epoch: int) -> float:
        """Return the regret of the checkpoint of `epoch`, counted from 1, or of the config: see `delivered`."""
        value = curve.clean[epoch - 1] if self.delivered == "checkpoint" else curve.final
        return min(value, self.worst) - self.best


def build_closed_form(form: type[curves.Form], held_out: bool) -> Problem:
    def curve(values: Values, draw: np.random.Generator) -> Curve:
        clean, seconds, diverges_at = form.train(values)
        noise = form.noise * draw.standard_normal(form.epochs)
        seen = [v + n if e < diverges_at else math.nan for e, (v, n) in enumerate(zip(clean, noise, strict=True), 1)]
        return Curve(seen, clean, seconds, clean[-1] if diverges_at > form.epochs else math.inf)

    name, space = form.__name__.lower(), _space(form.config, form.epochs)
    return Problem(name, held_out, space, form.epochs, form.best, form.worst, curve, form.delivered)


def build_hartmann(dimensions: int, kind: str, held_out: bool) -> Problem:
    epochs = 27
    names = [f"x{i}" for i in range(dimensions)]

    def curve(values: Values, draw: np.random.Generator) -> Curve:
        x = np.array([values[name] for name in names])
        seen = [hartmann.compute_value(x, epoch / epochs, kind, draw) for epoch in range(1, epochs + 1)]
        final = hartmann.compute_value(x, 1.0, kind, draw)
        return Curve(seen, [final] * epochs, EPOCH_S, final)

    config = hartmann.Config3 if dimensions == 3 else hartmann.Config6
    best = hartmann.BEST[dimensions]
    space = _space(config, epochs, precision="fp32")
    return Problem(f"hartmann{dimensions}-{kind}", held_out, space, epochs, best, 0.0, curve, "config")


def _space(config: type[TaskConfig], epochs: int, **fixed: Any) -> Space:
    return resolve_space(config, {"epochs": epochs, **fixed}, {})


def build_problems() -> list[Problem]:
    """Return the problems in closed form. All results are known, so none is held out."""
    return [
        build_hartmann(3, "good", held_out=False),
        build_hartmann(6, "bad", held_out=False),
        build_closed_form(curves.Cliff, held_out=False),
        build_closed_form(curves.Crossing, held_out=False),
        build_closed_form(curves.Curriculum, held_out=False),
        build_hartmann(6, "good", held_out=False),
        build_hartmann(3, "terrible", held_out=False),
        build_closed_form(curves.Finetune, held_out=False),
        build_closed_form(curves.Annealed, held_out=False),
    ]
