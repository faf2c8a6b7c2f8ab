"""Does what Tune's searcher cannot: continues a trial in its gang, records why a gang was lost, detects a lost Ray."""

import time
from typing import Any

from ray import cloudpickle
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from searchlight.search.execution.cluster.connection import find_lost_process
from searchlight.search.execution.failure_policy import describe_failure
from searchlight.search.execution.searcher import StudySearcher

CHECK_S = 1.0  # how often Ray is checked


class RayLost(BaseException):
    """Ends a run of Tune. Not an Exception, after which Tune would call Ray to clean up for minutes."""


class GangScheduler(FIFOScheduler):
    """Lets a gang go on with its trial at the end of a segment if `searcher` says so. Schedules nothing else.

    Otherwise Tune ends the segment: it closes the gang if another one is idle, and gives the next segment to any gang.
    """

    def __init__(self, searcher: StudySearcher) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._searcher = searcher
        self._next_check_at = 0.0

    def on_trial_result(self, tune_controller: TuneController, trial: Trial, result: dict[str, Any]) -> str:
        if not result["is_held"]:
            return str(self.CONTINUE)
        segment = self._searcher.handle_segment_end(trial.trial_id, result)
        if segment is None:
            return str(self.STOP)
        gang = trial.temporary_state.ray_actor
        assert gang is not None  # it has just reported
        gang.begin.remote(segment)  # before Tune's next call of this actor
        return str(self.CONTINUE)

    def choose_trial_to_run(self, tune_controller: TuneController) -> None:
        """Choose none, since Tune starts pending trials itself. Apply commands of users.

        Check Ray, which Tune would wait for forever.

        Raises:
            RayLost: A process of Ray on this machine has ended.
        """
        self._searcher.apply_commands()
        if (now := time.monotonic()) < self._next_check_at:
            return
        self._next_check_at = now + CHECK_S
        if lost := find_lost_process():
            raise RayLost(lost)

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        if path := trial.pickled_error_file:  # not in the storage yet
            with open(path, "rb") as file:
                self._searcher.loss_reasons[trial.trial_id] = describe_failure(cloudpickle.load(file))
