"""A search of a built-in task in one process: the project's choices and real trainings, without Ray and MLflow.

Two gangs train in turn, one epoch each, so that choices are made in the order of two equally fast gangs.
"""

import tempfile
from collections import deque
from pathlib import Path
from typing import Any

from optuna.storages import InMemoryStorage
from ray.tune.search import Searcher

from searchlight.search.config import load_config
from searchlight.search.execution.report_handler import SearchLimits
from searchlight.search.execution.searcher import StudySearcher
from searchlight.search.experiment import plan as plan_search
from searchlight.search.samplers.factory import sampler_factory
from searchlight.search.study.record import SearchRecord
from searchlight.search.study.study import SearchStudy
from searchlight.trainables.context import Context
from searchlight.trainables.precision import Diverged
from searchlight.trainables.registry import load_class
from searchlight.trainables.training.trainer import TrialTrainer
from searchlight.trainables.worker.messages import (
    Divergence,
    EpochReport,
    GangResult,
    SegmentAssignment,
    SegmentEnd,
    to_json,
)

GANGS = 2
NO_CHECKPOINT = "none"  # a trial that continues keeps its trainer


def search_locally(task: str, confirm: int, seed: int, **options: Any) -> SearchRecord:
    """Search with the defaults beside the given options of a search, and return the record of the search."""
    with tempfile.TemporaryDirectory() as folder:
        given = {"task": task, "confirm": confirm, "seed": seed, "storage": folder, "name": f"s{seed}", **options}
        plan = plan_search(load_config({**given, "search": {"precision": "fp32,bf16"}}))  # as without a GPU
        sampler = sampler_factory(plan.config.sampler, seed)
        study = SearchStudy(InMemoryStorage(), plan.config.name, sampler, plan.objectives)
        study.save_metadata({"config": plan.options, "defaults": plan.space.get_defaults(), "first": [*plan.first]})
        for point in plan.first:
            study.enqueue(point)
        limits, where = SearchLimits(plan.trials), Path(folder)
        searcher = StudySearcher(
            study, plan.space, plan.schedule, limits, where, attempt="1", confirmation=plan.confirmation
        )
        _run_gangs(searcher, Trainers(plan.source.reference))
        if searcher.error is not None:
            raise searcher.error
        return study.get_record()


class Trainers:
    """The trainers of the trials that have begun. Each trial continues where it paused."""

    def __init__(self, task: str) -> None:
        self._task_class = load_class(task)
        self._context = Context()
        self._trainers: dict[int, TrialTrainer] = {}

    def train(self, segment: SegmentAssignment, epoch: int) -> EpochReport | SegmentEnd:
        """Train a trial for one epoch, and report this epoch or that the trial diverged."""
        if segment.trial not in self._trainers:
            config = self._task_class.config_class().model_validate(segment.config)
            self._trainers[segment.trial] = TrialTrainer(self._task_class(config, self._context.for_next_trial()))
        trainer = self._trainers[segment.trial]
        report: EpochReport | SegmentEnd
        try:
            report = EpochReport(epoch, trainer.run_epoch(), NO_CHECKPOINT, {}, epoch == segment.until)
        except Diverged as error:
            report = SegmentEnd("diverged", str(error), divergence=Divergence(error.kind, epoch))
        if isinstance(report, SegmentEnd) or (segment.is_last and report.done):
            self._trainers.pop(segment.trial).close()
        return report


def _run_gangs(searcher: StudySearcher, trainers: Trainers) -> None:
    """Train segments until the searcher has no more."""
    working: deque[tuple[str, SegmentAssignment, int]] = deque()
    asked = 0
    while True:
        while len(working) < GANGS:
            asked += 1
            given = searcher.suggest(str(asked))
            if given is None or given == Searcher.FINISHED:
                break
            working.append((str(asked), given["segment"], given["segment"].epoch))
        if not working:
            return
        name, segment, epoch = working.popleft()
        epoch += 1
        report = trainers.train(segment, epoch)
        result = {"is_held": False, "reports": to_json(GangResult("local", [report]))}
        if report.done:
            searcher.on_trial_complete(name, result)
        else:
            searcher.on_trial_result(name, result)
            working.append((name, segment, epoch))
