"""What searches at several sizes show together: the law of the best values, and what to try at the next size."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial

from searchlight.search.analysis.best_trials import find_incumbent
from searchlight.search.analysis.confirmed_best import confirm
from searchlight.search.formatting import format_change, format_value
from searchlight.search.scaling.fit import SizedRun, fit_law
from searchlight.search.scaling.law import ScaledParameter, ScalingLaw
from searchlight.search.scaling.size import Size, describe_size, measure_size
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.trial import get_best_value, get_outcome, gpu_seconds_used

FEWEST = 3  # trials at a size: the predicted setting, the unscaled one, and a neighbor
STEEPEST = 2.0  # exponent of the cost over the product of the sizes, until two sizes show it


@dataclass(frozen=True)
class SizedSearch:
    """The search at one size."""

    name: str
    size: Size
    record: SearchRecord

    @cached_property
    def best(self) -> FrozenTrial | None:
        """The best trial, or None if no trial has a result."""
        return find_incumbent(self.record.trials, self.record.objective)

    @property
    def best_value(self) -> float | None:
        """The objective of the best trial, or None if no trial has a result."""
        return get_best_value(self.best, self.record.objective) if self.best is not None else None

    @property
    def completed(self) -> list[FrozenTrial]:
        """The complete trials."""
        return [trial for trial in self.record.trials if get_outcome(trial) == "completed"]

    @property
    def gpu_seconds(self) -> float:
        """What all trials and confirming runs took together."""
        return sum(map(gpu_seconds_used, self.record.all_trials))

    def find_value(self, point: Mapping[str, Any]) -> float | None:
        """Return the objective of a complete trial of `point`, or None without one."""
        found = (get_best_value(trial, self.record.objective) for trial in self.completed if trial.params == point)
        return next(found, None)


@dataclass(frozen=True)
class Proof:
    """What the largest size shows about the law of the smaller ones.

    Attributes:
        search: The search at the largest size.
        unscaled_at: The smallest size, whose best setting was tried unchanged.
        predicted: The value of the setting that the law of the smaller sizes predicted.
        unscaled: The value of the best setting of the smallest size. None: it diverged or failed.
    """

    search: SizedSearch
    unscaled_at: str
    predicted: float
    unscaled: float | None

    @property
    def statement(self) -> str:
        """What the largest size shows, as a sentence."""
        record, unscaled = self.search.record, self.unscaled
        text = f"at {describe_size(self.search.size)}, the setting that the law of the smaller sizes predicts has "
        text += (
            f"{record.objective.metric} {format_value(self.predicted)}; the best one of {self.unscaled_at}, unchanged, "
        )
        if unscaled is None:
            text += "has no result"
        else:
            word = "loses" if record.objective.is_better(self.predicted, unscaled) else "gains"
            change = f"it {word} {format_change(unscaled, self.predicted)}"
            text += f"has {format_value(unscaled)}: {change if unscaled != self.predicted else 'the same'}"
        text += f". The best of {len(record.trials)} trials has {format_value(self.search.best_value)}"
        for confirmation in confirm(record)[:1]:  # of the first objective, whose defaults are the unscaled setting
            told = confirmation.statement.replace("the defaults", f"the unchanged setting of {self.unscaled_at}")
            text += f". Under new seeds: {told}"
        return text


@dataclass(frozen=True)
class Ladder:
    """The searches at the sizes so far, from small to large, and the size that they are for.

    Attributes:
        exponents: The starting law, by parameter and size.
    """

    searches: Sequence[SizedSearch]
    target: Size
    exponents: Mapping[str, Mapping[str, float]]

    @cached_property
    def parameters(self) -> list[ScaledParameter]:
        """The searched parameters that are numbers. Each trial has them."""
        trials = [trial for search in self.searches for trial in search.record.trials if trial.distributions]
        found = []
        for name, d in trials[0].distributions.items() if trials else ():
            if isinstance(d, FloatDistribution | IntDistribution) and all(name in trial.params for trial in trials):
                found.append(ScaledParameter(name, d.low, d.high, d.log))
        return found

    @cached_property
    def law(self) -> ScalingLaw | None:
        """The law of all sizes so far, or None if there is no parameter or no run to fit it to."""
        runs = []
        for search in self.searches:
            for trial in search.completed:
                values = {parameter.name: float(trial.params[parameter.name]) for parameter in self.parameters}
                loss = search.record.objective.loss(get_best_value(trial, search.record.objective))
                runs.append(SizedRun(search.size, values, loss))
        if not self.parameters or not any(math.isfinite(run.loss) for run in runs):
            return None
        return fit_law(runs, self.parameters, self.exponents)

    @cached_property
    def proof(self) -> Proof | None:
        """What the largest size shows, or None with one size, or if the predicted setting has no result there."""
        if len(self.searches) < 2:
            return None
        *before, search = self.searches
        unchanged, *others = search.record.about.get("first", ()) or [{}]
        # The predicted point follows the unchanged one, unless both are the same.
        is_same = replace(self, searches=before).propose(search.size, 1) == [unchanged]
        unscaled = search.find_value(unchanged)
        predicted = unscaled if is_same or not others else search.find_value(others[0])
        return Proof(search, before[0].name, predicted, unscaled) if predicted is not None else None

    def as_json(self) -> dict[str, Any]:
        """Return the sizes, the law, the setting for the target, and the proof as plain values."""
        sizes = [
            {
                "name": search.name,
                "size": search.size,
                "search": search.record.name,
                "trials": len(search.record.trials),
                "gpu_seconds": search.gpu_seconds,
                "best": dict(search.best.params) if search.best is not None else None,
                "value": search.best_value,
            }
            for search in self.searches
        ]
        found: dict[str, Any] = {"sizes": sizes, "target": self.target}
        if self.law is not None:
            found["law"] = {
                name: {"moves": self.law.moves[name], "exponents": {size: asdict(each) for size, each in own.items()}}
                for name, own in self.law.exponents.items()
            }
            found["values"] = {name: asdict(each) for name, each in self.law.predict(self.target).items()}
            found["fixed"] = self.choices
            found["warnings"] = [*self.law.find_warnings(self.target)]
        if self.proof is not None:
            found["proof"] = self.proof.statement
        return found

    @property
    def _bests(self) -> list[FrozenTrial]:
        """The best trial of each size that has one."""
        return [search.best for search in self.searches if search.best is not None]

    @property
    def choices(self) -> dict[str, Any]:
        """The values of parameters that are no numbers, from the best trial of the largest size."""
        names = {parameter.name for parameter in self.parameters}
        largest = self._bests[-1].params if self._bests else {}
        return {name: value for name, value in largest.items() if name not in names}

    @property
    def unscaled(self) -> dict[str, Any]:
        """The best values of the smallest size that has any, searched parameters alone."""
        return dict(self._bests[0].params) if self._bests else {}

    def propose(self, size: Mapping[str, float], count: int) -> list[dict[str, Any]]:
        """Return at most `count` points for `size` inside of the search space: the predicted one, then its neighbors.

        Parameters that are no numbers have the best values of the largest size so far. Without a law, there are no
        points.
        """
        if self.law is None or not self._bests:
            return []
        largest = self._bests[-1]
        points: list[dict[str, Any]] = []
        for values in self.law.propose(size, count):
            snapped = {name: snap(largest.distributions[name], value) for name, value in values.items()}
            points += [point] if (point := largest.params | snapped) not in points else []
        return points

    def estimate_cost(self, size: Mapping[str, float]) -> float | None:
        """Return the expected GPU-seconds of a trial at `size` from those of the sizes so far, or None if unknown.

        Two sizes show how steeply the cost grows. Before, it is assumed to grow with the square of the size.
        """
        known = [
            (measure_size(search.size), max(statistics.median(map(gpu_seconds_used, search.completed)), 1e-3))
            for search in self.searches
            if search.completed
        ]
        if not known:
            return None
        (at, cost), steepness = known[-1], STEEPEST
        for smaller, cheaper in known[-2:-1]:
            steepness = max(0.0, math.log(cost / cheaper) / math.log(at / smaller))
        return float(cost * (measure_size(size) / at) ** steepness)

    def plan_points(self, size: Mapping[str, float], seconds: float) -> tuple[list[dict[str, Any]], str]:
        """Return the points for `size` beside the unscaled one, or none and why the size cannot be searched.

        With the unscaled one, they are as many as the trials of the smallest size, halved with each further size. But
        they are two for each parameter and two more if that size had as many. The budget may allow fewer.

        Args:
            seconds: What the size may take in GPU-seconds, or infinity.
        """
        first, cost = len(self.searches[0].record.trials), self.estimate_cost(size)
        count = max(min(2 * len(self.parameters) + 2, first), first // 2 ** len(self.searches), FEWEST)
        count = count if cost is None else int(min(count, seconds / cost))
        if count < FEWEST:
            return [], f"the GPU-hours allow no {FEWEST} trials at {describe_size(size)}"
        if self.law is None:
            return [], "no number is searched in all trials"
        points = [point for point in self.propose(size, count) if point != self.unscaled][: count - 1]
        reason = f"the law has no other values for {describe_size(size)} than the unchanged ones"
        return points, "" if points else reason


def snap(distribution: BaseDistribution, value: float) -> Any:
    """Return the value of `distribution` that is nearest to `value`."""
    assert isinstance(distribution, FloatDistribution | IntDistribution)
    value = min(max(value, float(distribution.low)), float(distribution.high))
    if distribution.step is not None:
        value = distribution.low + round((value - distribution.low) / distribution.step) * float(distribution.step)
        value = min(value, float(distribution.high))  # 0.1 + 2 * 0.1 is above 0.3
    return round(value) if isinstance(distribution, IntDistribution) else float(value)
