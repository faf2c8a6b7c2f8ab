"""The choice of confirming runs: finalists and the defaults, trained in full under new seeds."""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from searchlight.search.schedulers.confirmation import Run, default_runs, next_runs, num_finalists
from searchlight.search.space.fidelity import Unit, cumulative_cost
from searchlight.search.space.objectives import Objective, select_non_dominated
from searchlight.search.study.trial import (
    WITH_RESULT,
    WORSE,
    ConfirmingRun,
    get_best_value,
    get_outcome,
    get_reports,
    ignore_seeds,
    intermediate_values,
    is_feasible,
    objective_losses,
    split_trials,
)

SEEDS = ("seed", "data_seed")  # fields of a config that a new seed replaces
LARGEST_SEED = 2**31


@dataclass(frozen=True)
class DueRun:
    """A run of a finalist's config or of the defaults, in full and under a new seed, with its whole `config`."""

    run: ConfirmingRun
    config: dict[str, Any]


@dataclass
class _State:
    """The state of a confirmation in the study.

    Attributes:
        runs: The largest number of runs.
        is_futile: Whether the task ignores its seed, so that further runs show nothing.
        begun: The runs that have started, including those that ended.
        dropped: The configs of which a run diverged, was infeasible or failed.
    """

    runs: int
    finalists: list[FrozenTrial]
    is_futile: bool = False
    values: dict[int | None, dict[int, float]] = field(default_factory=dict)
    begun: set[Run] = field(default_factory=set)
    dropped: set[int | None] = field(default_factory=set)


@dataclass(frozen=True)
class ConfirmationPlan:
    """Chooses the confirming runs of a search from its trials. It is stateless, so a search can be resumed.

    Attributes:
        objectives: The first one ranks the finalists. With several, the finalists are on the Pareto front.
        seed: The seed of the search, from which the new seeds are derived.
        unit: The unit of fidelity.
        runs: The largest number of runs. None: a fifth of the search's cost.
        defaults: The config of the task's defaults, or None if it cannot run.
        limit: The largest cost of a run in the unit of fidelity, or None if it is unknown.
    """

    objectives: tuple[Objective, ...]
    seed: int
    unit: Unit = "epochs"
    runs: int | None = None
    defaults: Mapping[str, Any] | None = None
    limit: float | None = None

    def next_runs(self, trials: Sequence[FrozenTrial]) -> list[DueRun]:
        """Return the runs that may begin now, in order. `trials` are all trials of the study."""
        state = self._collect(trials)
        configs: dict[int | None, Mapping[str, Any] | None] = {None: self.defaults}
        configs |= {finalist.number: finalist.user_attrs["config"] for finalist in state.finalists}
        due = self._find_due(state, state.begun)
        searched, _ = split_trials(trials)
        seeds = {index: self._draw_seed(index, searched) for _, index in due}
        return [
            DueRun(ConfirmingRun(config, index, seeds[index]), _replace_seeds(configs[config], seeds[index]))
            for config, index in due
        ]

    def count_runs(self, trials: Sequence[FrozenTrial]) -> int:
        """Return the total number of confirming runs after the trials of the study, if no further run fails."""
        state = self._collect(trials)
        runs = {*state.begun}
        while due := self._find_due(state):
            runs |= {*due}
            for config, index in due:
                state.values.setdefault(config, {})[index] = 0.0  # which values these are changes no number
        return len(runs)

    def _find_due(self, state: "_State", begun: Collection[Run] = ()) -> list[Run]:
        if state.is_futile or len(state.finalists) + (self.defaults is not None) < 2:
            return []  # there is nothing to compare
        return next_runs(
            [finalist.number for finalist in state.finalists],
            state.values,
            state.runs,
            self.objectives[0].mode,
            begun=begun,
            dropped=state.dropped,
            with_defaults=self.defaults is not None,
            halves=len(self.objectives) == 1,  # a trial of the front may be the worst by the first objective
        )

    def _collect(self, trials: Sequence[FrozenTrial]) -> "_State":
        searched, confirming_runs = split_trials(trials)
        runs = self._count_allowed(searched)
        finalists = self._select_finalists(searched, num_finalists(runs, self.defaults is not None))
        state = _State(runs, finalists, ignore_seeds(confirming_runs))
        for trial in confirming_runs:
            run = ConfirmingRun.from_trial(trial)
            state.begun.add((run.trial, run.round))
            if get_outcome(trial) == "completed" and intermediate_values(trial):
                value = get_best_value(trial, self.objectives[0])
                state.values.setdefault(run.trial, {})[run.round] = value
            elif get_outcome(trial) in (*WORSE, "failed"):
                state.dropped.add(run.trial)
        return state

    def is_complete(self, trials: Sequence[FrozenTrial]) -> bool:
        """Return whether no run is left. `trials` are all trials of the study."""
        has_ended = all(trial.state.is_finished() for trial in split_trials(trials)[1])
        return has_ended and not self.next_runs(trials)

    def _count_allowed(self, searched: Sequence[FrozenTrial]) -> int:
        if self.runs is not None:
            return self.runs
        costs = [self._compute_cost(trial) for trial in searched]
        complete = [self._compute_cost(trial) for trial in searched if trial.state == TrialState.COMPLETE]
        # A budget may have ended the search before any trial was complete.
        full = max(complete, default=self.limit or max(costs, default=0.0))
        return default_runs(int(sum(costs) / max(full, 1e-9)), 1)

    def _select_finalists(self, searched: Sequence[FrozenTrial], count: int) -> list[FrozenTrial]:
        """Return the best complete trials, without the defaults and duplicate configs.

        If there are too few, add incomplete trials, the longest first. With several objectives, only the Pareto front
        counts.
        """
        losses = {
            trial.number: found
            for trial in searched
            if (get_outcome(trial) in WITH_RESULT or trial.state == TrialState.RUNNING)
            and is_feasible(trial, self.objectives[0])
            and (found := objective_losses(trial, self.objectives))
        }
        if len(self.objectives) > 1:
            losses = {number: losses[number] for number in select_non_dominated(losses)}

        def rank(trial: FrozenTrial) -> tuple[float, tuple[float, ...], int]:
            is_complete = trial.state == TrialState.COMPLETE
            return -math.inf if is_complete else -self._compute_cost(trial), losses[trial.number], trial.number

        known, finalists = [_replace_seeds(self.defaults, 0)] if self.defaults is not None else [], []
        for trial in sorted((trial for trial in searched if trial.number in losses), key=rank):
            if (config := _replace_seeds(trial.user_attrs["config"], 0)) not in known:
                known.append(config)
                finalists.append(trial)
        return finalists[:count]

    def _compute_cost(self, trial: FrozenTrial) -> float:
        """Return the cost of `trial` in the unit of fidelity."""
        return max(cumulative_cost(get_reports(trial), self.unit).values(), default=0.0)

    def _draw_seed(self, index: int, searched: Sequence[FrozenTrial]) -> int:
        """Return the new seed of round `index`, which the search has not used."""
        used = {trial.user_attrs.get("config", {}).get(name) for trial in searched for name in SEEDS}
        draw = random.Random(f"confirm {self.seed} {index}")
        return next(seed for _ in iter(int, 1) if (seed := draw.randrange(LARGEST_SEED)) not in used)


def _replace_seeds(config: Mapping[str, Any] | None, seed: int) -> dict[str, Any]:
    config = config or {}
    return {**config, **{name: seed for name in SEEDS if name in config}}
