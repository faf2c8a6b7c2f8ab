"""The audit of a task: all its parts in turn, in one process, within a time limit."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from searchlight.trainables.context import Context
from searchlight.trainables.precision import AUTO, Precision, resolve
from searchlight.trainables.preflight import data_checks, determinism, exactness
from searchlight.trainables.preflight.checks.errors import find_error
from searchlight.trainables.preflight.checks.gradients import MissingGradients
from searchlight.trainables.preflight.checks.losses import LossCalls, LossEffects
from searchlight.trainables.preflight.checks.structure import Structure
from searchlight.trainables.preflight.checks.updates import Updates
from searchlight.trainables.preflight.coordinates import check_coordinates
from searchlight.trainables.preflight.cost import EpochCost, find_largest_batch, measure_cost
from searchlight.trainables.preflight.findings import (
    PAGE,
    Finding,
    Kind,
    Severity,
    declare_kinds,
    describe_error,
    format_page,
    has_errors,
    make_finding,
    sort_findings,
)
from searchlight.trainables.preflight.messages import AuditRequest, AuditResult
from searchlight.trainables.preflight.modes import ModeReport, find_mode_problems
from searchlight.trainables.preflight.observation import ObservedTrial
from searchlight.trainables.preflight.ranks import find_rank_problems
from searchlight.trainables.preflight.shadow_device.check import PART, find_gpu_problems
from searchlight.trainables.registry import OwnModules
from searchlight.trainables.task import Task, TaskConfig
from searchlight.trainables.training.trainer import TrialTrainer

WINDOWS = 8  # that are watched: an update of a GAN may come with every fifth
FEW_WINDOWS = 3
SHARES = {"flow": 0.25, "exactness": 0.1, "modes": 0.2, "data": 0.15, "determinism": 0.15}  # of the time limit, at most


declare_kinds(
    "Determinism and data",
    Kind("noisy-evaluation", "warning", "Evaluate on more samples, or with fixed random numbers."),
)


declare_kinds("Cost", Kind("config-refused", "warning", "Narrow the range: the task refuses this corner of the space."))


class Audit:
    """One audit of a task.

    Args:
        load: Returns the task's class, as it is after `reset`.
        reset: What a worker does between two trials.
        reference: The task as "module:Class", which several ranks import, and a simulated GPU; "" to compare no ranks.
    """

    def __init__(
        self,
        load: Callable[[], type[Task[Any]]],
        request: AuditRequest,
        context: Context,
        reset: Callable[[], object] = lambda: None,
        reference: str = "",
    ) -> None:
        self.load, self.request, self.context, self.reset = load, request, context, reset
        self.reference = reference
        self.findings: list[Finding] = []
        self.costs: list[EpochCost] = []
        self.modes: list[ModeReport] = []
        self.seconds: dict[str, float] = {}
        self.config: TaskConfig = load().config_class().model_validate(request.config)
        self.on_progress: Callable[[], object] = lambda: False  # a sign of life; a true answer ends the audit
        self._effects = LossEffects()
        self._objectives: list[float] = []
        self._noise = 0.0
        self._evaluate_s: float | None = None
        self._largest: int | None = None

    def run(self) -> AuditResult:
        """Run all parts. What is wrong with the task is a finding; nothing that the task raises is raised."""
        if self.request.is_gpu_only:
            self._part("gpu", self._audit_gpu)
            return AuditResult(sort_findings(self.findings), seconds=self.seconds, device=PART)
        if self.request.sizes:
            self._part("sizes", lambda: check_coordinates(self.load, self.request.sizes, self.context))
            return AuditResult(sort_findings(self.findings), seconds=self.seconds, device=str(self.context.device))
        self._watch_trial()
        self.reset()
        if not self.request.is_quick and not has_errors(self.findings):
            if self.reference and self.request.workers > 1:
                self._part(
                    "ranks", lambda: find_rank_problems(self.reference, self.request.config, self.request.workers)
                )
                self.reset()
            arguments = (self.load, self.config, self.context, FEW_WINDOWS, self.reset, self._is_over)
            self._part("determinism", partial(determinism.find_irreproducible, *arguments))
            self._part("cost", self._audit_cost)
            if self.context.device.type == "cpu":  # last, since modules remember what they were told of a GPU
                self._part("gpu", self._audit_gpu)
        findings = self.findings
        if self._is_partial:
            findings = [replace(each, severity="warning") if each.severity == "error" else each for each in findings]
        return AuditResult(sort_findings(findings), self.costs, self.modes, self.seconds, str(self.context.device))

    @property
    def _is_partial(self) -> bool:
        """Whether one rank trains alone, so that what it finds is no proof for all ranks."""
        return self.request.is_quick and self.request.workers > 1

    def _watch_trial(self) -> None:
        # The last one watches each call of torch in a loss, so that it must not see what the others do.
        checks = [Structure(), self._effects, Updates(), MissingGradients(), LossCalls()]
        trial = ObservedTrial(self.load(), self.config, self.context, checks)
        try:
            is_done = self._part("flow", partial(self._audit_flow, trial)) and (
                trial.error is None or not self._is_partial
            )
            if is_done and not has_errors(self.findings):
                matters = self.request.accumulates or self.config.accumulation > 1 or self.request.workers > 1
                self._part("exactness", partial(exactness.find_inexact, trial, matters, self._is_over))
                self._part("modes", partial(self._audit_modes, trial))
                if not self.request.is_quick:
                    self._part("data", partial(self._audit_data, trial))
        finally:
            trial.close()

    def _part(self, name: str, action: Callable[[], Sequence[Finding] | None]) -> bool:
        """Run a part of the audit, and add the findings that it returns. An error of the audit itself is a note."""
        start = time.perf_counter()
        self._until = start + self.request.limit_s * SHARES.get(name, 0.3)
        try:
            self.findings += action() or ()
        except Exception as error:  # what the audit does to a task, no trial may ever do: it blocks no search
            self.findings.append(make_finding("not-audited", name, describe_error(error)))
            return False
        finally:
            self.seconds[name] = round(time.perf_counter() - start, 3)
        return True

    def _is_over(self) -> bool:
        return bool(self.on_progress()) or time.perf_counter() > self._until

    def _audit_flow(self, trial: ObservedTrial) -> None:
        trial.train(FEW_WINDOWS if self.request.is_quick else WINDOWS, self._is_over)
        if trial.error is not None and trial.phase != "build" and not self._raises_unwatched(trial):
            figure = f"{type(trial.error).__name__} while the trial was watched, and not without"
            self.findings.append(make_finding("not-audited", "gradient flow", figure))
            return
        raised = find_error(trial)
        if self._is_partial:  # the task may need its other ranks, or Ray Train
            raised = [make_finding("not-audited", "one rank alone", finding.figure) for finding in raised]
        self.findings += raised
        for check in trial.checks if trial.trainer is not None else ():
            self.findings += check.find(trial)  # one by one: what one raises must not drop the findings before it

    def _raises_unwatched(self, trial: ObservedTrial) -> bool:
        """Return whether the same trial raises without the hooks of the audit: only that is a fault of the task."""
        trainer = TrialTrainer(self.load()(trial.task.config, self.context.for_next_trial()))
        asked = 0

        def stopping() -> bool:
            nonlocal asked
            asked += 1  # once per window, and once more for each epoch
            return asked > trial.windows + 2

        try:
            while trainer.epoch <= trial.windows and trainer.run_epoch(stopping) is not None:
                pass
        except (Exception, SystemExit):  # whatever the task raises
            return True
        finally:
            trainer.close()
        return False

    def _audit_modes(self, trial: ObservedTrial) -> None:
        device = self.context.device
        modes = [resolve(mode, device) if mode == AUTO else mode for mode in self.request.modes]
        wanted = [mode for mode in dict.fromkeys(modes) if mode in list(Precision)]
        found, self.modes = find_mode_problems(trial, wanted, self._is_over)
        self.findings += found

    def _audit_data(self, trial: ObservedTrial) -> None:
        evaluated = trial.trainer is not None
        found, training = data_checks.find_order_problems(trial, self._is_over)
        self.findings += [*found, *self._effects.find_overwritten(training.samples)]
        if evaluated:
            found, objective, self._noise = data_checks.find_evaluation_problems(trial, training, self._is_over)
            self.findings += found + find_error(trial)
            self._objectives.append(objective)
            self._evaluate_s = trial.evaluate_s
        with suppress(TypeError):  # a micro-batch of the task's own kind cannot be multiplied
            precision = resolve(self.config.precision, self.context.device)
            self._largest = find_largest_batch(trial, precision, self.request.workers, self._is_over)

    def _audit_gpu(self) -> list[Finding]:
        if self.reference:
            OwnModules(self.reference).forget()  # which may remember that there is no GPU
        severity: Severity | None = "error" if self.request.wants_gpu else None
        return find_gpu_problems(self.load, self.config, self.context, severity)

    def _audit_cost(self) -> None:
        left = max(1.0, self.request.limit_s - sum(self.seconds.values()))
        self._until = time.perf_counter() + left
        configs = [("", self.request.config), *self.request.corners]
        supported = [mode for mode in self.request.modes if mode in {report.precision for report in self.modes}]
        configs += [
            (f"precision={mode}", {**self.request.config, "precision": mode})
            for mode in supported
            if resolve(self.config.precision, self.context.device) != mode
        ]
        for index, (where, values) in enumerate(configs):
            if index and time.perf_counter() > self._until:
                figure = f"{len(configs) - index} of {len(configs)} configs were left out after {left:.0f} s"
                self.findings.append(make_finding("not-audited", "cost", figure))
                break
            self._audit_config(where, values, left / len(configs))
        self._judge_noise()

    def _audit_config(self, where: str, values: dict[str, Any], limit_s: float) -> None:
        task_class = self.load()
        try:
            config = task_class.config_class().model_validate(values)
        except ValueError as error:
            lines = str(error).splitlines()
            self.findings.append(
                make_finding("config-refused", "the config", "; ".join(lines[1:3]) or str(error), None, where)
            )
            return
        cost, found, objective = measure_cost(task_class, config, self.context, where, limit_s, self._evaluate_s)
        self.findings += found
        if cost is not None:
            self.costs.append(cost if where else replace(cost, largest=self._largest))
        if objective is not None:
            self._objectives.append(objective)
        self.reset()

    def _judge_noise(self) -> None:
        values = [value for value in self._objectives if math.isfinite(value)]
        spread = max(values, default=0.0) - min(values, default=0.0)
        if len(values) > 2 and 2 * self._noise > spread:  # the values of the configs have the noise, too
            figure = f"{self._noise:.3g} between seeds, {spread:.3g} between {len(values)} configs"
            self.findings.append(make_finding("noisy-evaluation", "evaluate", figure))


if __name__ == "__main__":
    PAGE.write_text(format_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
