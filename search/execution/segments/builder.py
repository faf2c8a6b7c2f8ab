"""Begins trials, and builds the segments that gangs train."""

import logging
import random
from contextlib import suppress
from typing import Any

from optuna.trial import FrozenTrial
from pydantic import ValidationError

from searchlight.search.errors import format_validation_errors
from searchlight.search.execution.report_handler import ReportHandler
from searchlight.search.execution.segments.trial_progress import ProgressReader
from searchlight.search.samplers.perturbation import perturb
from searchlight.search.schedulers.base import Segment
from searchlight.search.schedulers.pbt import format_replacement_reason
from searchlight.search.space.fidelity import cumulative_cost, report_field
from searchlight.search.space.search_space import Space
from searchlight.search.study.trial import get_reports, inherit_micro_batches, max_epochs
from searchlight.trainables.task import TaskConfig
from searchlight.trainables.worker.messages import Infeasibility, SegmentAssignment, SegmentBudget

logger = logging.getLogger(__name__)
EXPLORED = 20  # attempts to draw hyperparameters that the task accepts


class SegmentBuilder:
    """Begins the trials that a scheduler wants, and builds their segments. For `attempt`, see StudySearcher."""

    def __init__(self, progress: ProgressReader, space: Space, reports: ReportHandler, attempt: str) -> None:
        self.study, self.schedule, self.controls = progress.study, progress.schedule, progress.controls
        self._get_limit = progress.get_limit
        self.space, self.reports, self.attempt = space, reports, attempt

    def start_segment(self, segment: Segment) -> SegmentAssignment | None:
        if segment.copied_from is not None:
            return self._copy_trial(segment)
        if segment.number is None:
            return self._start_trial(segment, *self.study.ask(self.space))
        if "config" not in self.study.get_trial(segment.number).user_attrs:  # the search died while asking
            return self._start_trial(segment, segment.number, self.study.resume_ask(segment.number, self.space))
        return self.continue_trial(segment)

    def _start_trial(self, segment: Segment, number: int, values: dict[str, Any]) -> SegmentAssignment | None:
        """Start a trial and return its first segment, or None if the task or a command refuses it."""
        try:
            config = self.space.build_config(values).model_dump(mode="json", round_trip=True)
        except ValidationError as error:
            self.study.record_config(number, values)
            self.reports.notify(number)
            reason = "; ".join(format_validation_errors(error))
            self.reports.finish_trial(number, "infeasible", reason, infeasibility=Infeasibility("build"))
            return None
        self.study.record_config(number, config)
        self.reports.notify(number)
        self.controls.update_trials()  # its author may have no GPU-hours left
        if self.study.get_trial(number).state.is_finished():
            return None
        return self.assign(number, 0, segment.until, [None])

    def _copy_trial(self, segment: Segment) -> SegmentAssignment:
        """Start a trial from the newest checkpoint of another one, then end the trial that it replaces.

        In this order, a resumed search finds in the study which trial must still be ended.
        """
        assert segment.copied_from is not None
        parent = self.study.get_trial(segment.copied_from)
        values, config = self._perturb_values(parent.params, random.Random(segment.draw))
        path, epoch = self.reports.checkpoints.copy(parent, self.study.get_next_number())
        copy = {"epoch": epoch, "checkpoint": path, "replaces": segment.replaces}
        attributes = {"config": config, "copied_from": parent.number, "copy": copy}
        attributes |= inherit_micro_batches(parent, config)
        number = self.study.create_copy(self.space, values, attributes)
        self.reports.notify(number)
        if segment.replaces is not None:
            self.reports.finish_trial(segment.replaces, "pruned", format_replacement_reason(parent.number))
        return self.assign(number, epoch, segment.until, [path, None] if path else [None])

    def _perturb_values(self, values: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return perturbed `values` that commands allow and their config, or `values` if all attempts are refused."""
        for _ in range(EXPLORED):
            near = perturb(self.space, values, draw)
            if self.study.allows is None or self.study.allows(near):
                with suppress(ValidationError):
                    return near, self.space.build_config(near).model_dump(mode="json", round_trip=True)
        who = "the task" if self.study.allows is None else "the task or a command"
        logger.warning("%s refused %d combinations near to %s: they are copied as they are", who, EXPLORED, values)
        return values, self.space.build_config(values).model_dump(mode="json", round_trip=True)

    def continue_trial(self, segment: Segment) -> SegmentAssignment:
        assert segment.number is not None
        candidates = self.reports.checkpoints.resume_candidates(self.study.get_trial(segment.number), segment.start)
        return self.assign(segment.number, segment.start, segment.until, candidates)

    def assign(self, number: int, epoch: int, until: float, checkpoints: list[str | None]) -> SegmentAssignment:
        """Return the segment of a trial from `epoch` to the cost `until`."""
        trial = self.study.get_trial(number)
        unit, epochs, budget = self.schedule.unit, max_epochs(trial), None
        config = {**trial.user_attrs["config"], **trial.user_attrs.get("micro_batches", {})}
        limit = self._get_limit(trial) if unit == "epochs" else self.schedule.limit
        if unit == "epochs":
            config |= {"epochs": int(limit)} if limit > epochs else {}  # a command has extended it
            epochs = min(int(limit), int(until))
        else:
            spent = cumulative_cost(get_reports(trial), unit).get(epoch, 0.0)
            budget = SegmentBudget(report_field(unit), epoch, spent, until)
        return SegmentAssignment(
            number,
            config,
            epoch,
            epochs,
            str(self.reports.checkpoints.get_trial_folder(number)),
            self.attempt,
            checkpoints,
            trial.user_attrs.get("copy", {}).get("checkpoint"),
            budget,
            until >= limit,
        )


def split_micro_batches(space: Space, trial: FrozenTrial) -> dict[str, int] | None:
    """Return the fields of the config of a trial that has run out of memory, so that it needs less, or None."""
    attributes = trial.user_attrs
    config = space.config_class.model_validate({**attributes["config"], **attributes.get("micro_batches", {})})
    return config.split_micro_batches() if isinstance(config, TaskConfig) else None
