"""Records why Tune lost a gang, which its searcher does not see, and detects a lost Ray."""

import time

from ray import cloudpickle
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from searchlight.search.execution.cluster.connection import find_lost_process
from searchlight.search.execution.failure_policy import describe_failure

CHECK_S = 1.0  # how often Ray is checked


class RayLost(BaseException):
    """Ends a run of Tune. Not an Exception, after which Tune would call Ray to clean up for minutes."""


class GangFailureRecorder(FIFOScheduler):
    """Records in `reasons` why each gang ended, before the searcher is called. Schedules nothing."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reasons = reasons
        self._next_check_at = 0.0

    def choose_trial_to_run(self, tune_controller: TuneController) -> None:
        """Choose none, since Tune starts pending trials itself. Check Ray, which Tune would wait for forever.

        Raises:
            RayLost: A process of Ray on this machine has ended.
        """
        if (now := time.monotonic()) < self._next_check_at:
            return
        self._next_check_at = now + CHECK_S
        if lost := find_lost_process():
            raise RayLost(lost)

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        if path := trial.pickled_error_file:  # not in the storage yet
            with open(path, "rb") as file:
                self.reasons[trial.trial_id] = describe_failure(cloudpickle.load(file))
