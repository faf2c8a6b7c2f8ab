"""Why Tune lost a gang, or all of Ray: its searcher is only told that a gang was lost."""

import time

from ray import cloudpickle
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from search.execution.cluster.connection import find_lost_process
from search.execution.failure_policy import describe_failure

CHECK_S = 1.0  # how often Ray is checked


class RayLost(BaseException):
    """Ends a run of Tune. After an Exception, Tune would call Ray to clean up, and these calls take minutes."""


class GangFailureRecorder(FIFOScheduler):
    """Schedules nothing: the study does. Notes in `reasons` what ended each gang, before its searcher is told."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reasons = reasons
        self._next_check_at = 0.0

    def choose_trial_to_run(self, tune_controller: TuneController) -> None:
        """Choose none: Tune starts pending trials itself. Tune asks at each step, and waits forever for a lost Ray.

        Raises:
            RayLost: A process of Ray on this machine has ended.
        """
        if (now := time.monotonic()) < self._next_check_at:
            return
        self._next_check_at = now + CHECK_S
        if lost := find_lost_process():
            raise RayLost(lost)

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        if path := trial.pickled_error_file:  # not yet in the storage, where `trial.get_pickled_error` looks
            with open(path, "rb") as file:
                self.reasons[trial.trial_id] = describe_failure(cloudpickle.load(file))
