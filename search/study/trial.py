"""The outcome, reports and values of a trial."""

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from optuna.trial import FrozenTrial, TrialState

from searchlight.search.space.fidelity import UNLIMITED
from searchlight.search.space.objectives import Objective

OUTCOMES = ("completed", "pruned", "diverged", "infeasible", "failed", "interrupted")
WITH_RESULT = ("completed", "pruned")  # outcomes of trials with a result
WORSE = ("diverged", "infeasible")  # outcomes of trials that rank below all with a result
PENALTY = 1e30  # of an objective's value; large, and far from the largest float
Value = TypeVar("Value")
Curve = tuple[tuple[int, float], ...]  # epochs and values


@dataclass(frozen=True)
class ConfirmingRun:
    """A training of a finalist's config, or of the defaults, in full and under a new seed.

    Attributes:
        trial: The number of the finalist whose config it trains. None: the defaults.
        round: Runs of one round have the same seed.
        seed: The new seed.
    """

    trial: int | None
    round: int
    seed: int

    @classmethod
    def from_trial(cls, trial: FrozenTrial) -> "ConfirmingRun":
        """Return which confirming run `trial` is, which must be one."""
        return cls(**trial.user_attrs["confirms"])


class TrialCache(Generic[Value]):
    """Values that are computed from the trials of a study, kept until a trial changes. Then it is another object.

    Args:
        compute: Returns the value of a trial, given whether a gang trains it at present.
    """

    def __init__(self, compute: Callable[[FrozenTrial, bool], Value]) -> None:
        self._compute = compute
        self._trials: Sequence[FrozenTrial] = []
        self._live: set[int] = set()
        self._values: list[Value] = []

    def get(self, trial: FrozenTrial, live: set[int]) -> Value:
        """Return the value of `trial`. `live` has the numbers of the trials that a gang trains."""
        number, is_live = trial.number, trial.number in live
        if number < len(self._trials) and self._trials[number] is trial and (number in self._live) == is_live:
            return self._values[number]
        return self._compute(trial, is_live)

    def get_all(self, trials: Sequence[FrozenTrial], live: set[int]) -> Sequence[Value]:
        """Return the values of `trials`, which are all of a study, by number."""
        changed = {n for n, (trial, known) in enumerate(zip(trials, self._trials, strict=False)) if trial is not known}
        changed |= {n for n in self._live ^ live if n < len(self._trials)}
        new = range(len(self._trials), len(trials))
        values = self._values + [self._compute(trials[number], number in live) for number in new]
        for number in changed:
            values[number] = self._compute(trials[number], number in live)
        self._trials, self._live, self._values = trials, {*live}, values
        return values


def get_outcome(trial: FrozenTrial) -> str:
    """Return one of OUTCOMES. A trial that has not ended counts as interrupted."""
    if trial.state == TrialState.COMPLETE:
        return "completed"
    return str(trial.user_attrs.get("outcome", "interrupted"))


def describe_micro_batches(trial: FrozenTrial) -> str:
    """Return the fields of the config that `trial` was trained with instead of those proposed, or "" if there are none.

    The smaller micro-batches need less memory and give the same updates.
    """
    return ", ".join(f"{name}={value}" for name, value in trial.user_attrs.get("micro_batches", {}).items())


def inherit_micro_batches(parent: FrozenTrial, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attribute of a trial of `config` that begins with the smaller micro-batches of `parent`, if any.

    A copy may have other values in these fields. Then it is not known what fits.
    """
    split = parent.user_attrs.get("micro_batches", {})
    is_same = all(config[name] == parent.user_attrs["config"][name] for name in split)
    return {"micro_batches": split} if split and is_same else {}


def get_confirming_run(trial: FrozenTrial) -> ConfirmingRun | None:
    """Return which confirming run `trial` is, or None for a trial of the search itself."""
    return ConfirmingRun.from_trial(trial) if is_confirming(trial) else None


def is_confirming(trial: FrozenTrial) -> bool:
    """Return whether `trial` is a confirming run: it trains a config of the search again, under a new seed."""
    return "confirms" in trial.user_attrs


def has_checkpoint(trial: FrozenTrial) -> bool:
    """Return whether `trial` can continue after its last report, of which it has saved a checkpoint."""
    reports = get_reports(trial)
    return bool(reports) and reports[max(reports)]["checkpoint"] is not None


def split_trials(trials: Sequence[FrozenTrial]) -> tuple[list[FrozenTrial], list[FrozenTrial]]:
    """Return the trials of the search itself, and its confirming runs, each in the given order."""
    runs = [trial for trial in trials if is_confirming(trial)]
    return [trial for trial in trials if not is_confirming(trial)] if runs else list(trials), runs


def ignore_seeds(runs: Sequence[FrozenTrial]) -> bool:
    """Return whether confirming runs show that the task ignores its seed.

    At least two configs must differ from each other, have two runs each, and the runs of each must have equal
    objectives in all reports. One config is not enough: its accuracy on few samples may be the same by chance.
    """
    curves: dict[int | None, list[Curve]] = {}
    for run in runs:
        if get_outcome(run) == "completed":
            curves.setdefault(ConfirmingRun.from_trial(run).trial, []).append(get_curve(run))
    repeated = [{*own} for own in curves.values() if len(own) > 1]
    return all(len(own) == 1 for own in repeated) and len(set[Any]().union(*repeated)) > 1


def get_curve(trial: FrozenTrial) -> Curve:
    """Return the values of the first objective in all reports of a trial, by epoch."""
    return tuple(sorted(intermediate_values(trial).items()))


def get_reports(trial: FrozenTrial) -> dict[int, dict[str, Any]]:
    """Return the reports of `trial` by epoch.

    A report has `metrics`, `checkpoint`, `time` (seconds since 1970), `gang`, `seconds` (duration of the epoch), and
    `held_gpu_s`, the GPU-seconds that the trial had held. In a search with constraints it has `violations`, the values
    of the constraints by name.
    """
    reports = {
        int(key.removeprefix("report/")): value for key, value in trial.user_attrs.items() if key.startswith("report/")
    }
    return dict(sorted(reports.items()))


def measure_violation(report: Mapping[str, Any]) -> float:
    """Return by how much `report` violates the constraints of its search, summed over them. 0: it meets all."""
    return float(sum(max(0.0, value) for value in report.get("violations", {}).values()))


def get_constraints(trial: FrozenTrial, objective: Objective) -> dict[str, float]:
    """Return the constraints of a trial as Optuna defines them: a value above 0 violates its constraint.

    Those on metrics are of the best report.
    """
    attributes, constraints = trial.user_attrs, dict[str, float]()
    if intermediate_values(trial):
        epoch = get_best_epoch(trial, objective)
        constraints |= attributes.get(f"report/{epoch}", {}).get("violations", {})
    if attributes.get("outcome") == "diverged":
        constraints["diverged"] = 1.0
    if infeasibility := attributes.get("infeasibility"):
        constraints[infeasibility["constraint"]] = infeasibility["violation"]
    return constraints


def penalize_violations(trial: FrozenTrial, objective: Objective) -> Mapping[int, float]:
    """Return the reported values of the first objective by epoch, as a scheduler should compare them.

    A report that violates constraints has a value worse than any other, and the worse the more it violates them.
    """
    values = intermediate_values(trial)
    penalties = {
        epoch: objective.loss(PENALTY * (1 + violation))
        for epoch in values
        if (violation := measure_violation(trial.user_attrs.get(f"report/{epoch}", {})))
    }
    return {**values, **penalties} if penalties else values


def has_broken_off(trial: FrozenTrial) -> bool:
    """Return whether `trial` diverged, was infeasible or failed, so that a scheduler ranks it last."""
    return trial.state != TrialState.RUNNING and get_outcome(trial) in (*WORSE, "failed")


def is_feasible(trial: FrozenTrial, objective: Objective) -> bool:
    """Return whether `trial` violates no constraint so far."""
    return all(value <= 0 for value in get_constraints(trial, objective).values())


def max_epochs(trial: FrozenTrial) -> int:
    """Return the number of epochs of a complete `trial`."""
    return int(trial.user_attrs.get("config", {}).get("epochs") or UNLIMITED)


def count_extension(trial: FrozenTrial, planned: float, added: int) -> int:
    """Return how many of the epochs that commands have added to those `planned` a trial has trained."""
    return min(added, max(0, max(intermediate_values(trial), default=0) - int(planned)))


def intermediate_values(trial: FrozenTrial) -> Mapping[int, float]:
    """Return the reported values of the (first) objective of `trial`, by epoch."""
    return trial.intermediate_values or {
        int(key.removeprefix("report/")): report["objective"]
        for key, report in trial.user_attrs.items()
        if key.startswith("report/") and "objective" in report
    }


def get_segments(trial: FrozenTrial) -> list[dict[str, Any]]:
    """Return the segments of `trial` that have ended, in order.

    A segment has `gang`, when it `began`, when workers had `taken` it and when it `ended` (seconds since 1970), and
    `held_gpu_s`, the GPU-seconds that the trial had held by then. It has `failed` if it ended by an error, and `lost`
    with the reason if its workers were lost.
    """
    stretches = [value for key, value in trial.user_attrs.items() if key.startswith("stretch/")]
    return sorted(stretches, key=lambda stretch: float(stretch["began"]))


def get_end_time(trial: FrozenTrial) -> float:
    """Return when `trial` last reported or held workers, in seconds since 1970.

    A trial that waits at a rung may be pruned much later. A trial that did neither ends when it is refused. No trial
    ends before it starts, also if the clock was set back.
    """
    reports = [report["time"] for report in get_reports(trial).values() if "time" in report]
    segments = [segment["ended"] for segment in get_segments(trial)]
    assert trial.datetime_start is not None
    moment = trial.datetime_complete or trial.datetime_start
    return float(max(trial.datetime_start.timestamp(), max([*reports, *segments], default=moment.timestamp())))


def gpu_seconds_used(trial: FrozenTrial) -> float:
    """Return the GPU-seconds of `trial`. Those since its last report are missing if its driver was killed."""
    told = [*get_reports(trial).values(), *get_segments(trial)]
    return float(max((each.get("held_gpu_s", 0.0) for each in told), default=0.0))


def get_best_value(trial: FrozenTrial, objective: Objective) -> float:
    """Return the value of the first objective at the best epoch of `trial`.

    Raises:
        ValueError: The trial reported none.
    """
    return intermediate_values(trial)[get_best_epoch(trial, objective)]


def get_best_epoch(trial: FrozenTrial, objective: Objective, among: Container[int] | None = None) -> int:
    """Return the first epoch with the best value of the first objective. `among` restricts the epochs.

    A report that violates constraints is worse than one that meets them, and better the less it violates them: the
    rules of Deb (2000, doi 10.1016/S0045-7825(99)00389-8).

    Raises:
        ValueError: There is no such epoch.
    """
    values, reports = intermediate_values(trial), trial.user_attrs
    epochs = sorted(epoch for epoch in values if among is None or epoch in among)
    return min(
        epochs,
        key=lambda epoch: (measure_violation(reports.get(f"report/{epoch}", {})), objective.loss(values[epoch])),
    )


def objective_values(trial: FrozenTrial, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """Return all objectives of the best report by the first objective, or None without a report.

    These values belong to one checkpoint. The best values of each objective may belong to no single model.
    """
    if not intermediate_values(trial):
        return None
    epoch = get_best_epoch(trial, objectives[0])
    if len(objectives) == 1:
        return (intermediate_values(trial)[epoch],)
    metrics = trial.user_attrs[f"report/{epoch}"]["metrics"]
    return tuple(metrics[objective.metric] for objective in objectives)


def objective_losses(trial: FrozenTrial, objectives: Sequence[Objective]) -> tuple[float, ...] | None:
    """Return `objective_values` with the sign that makes smaller values better."""
    values = objective_values(trial, objectives)
    return values and tuple(objective.loss(value) for objective, value in zip(objectives, values, strict=True))
