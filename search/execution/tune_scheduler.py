"""Why Tune lost a gang: its searcher is only told that it did."""

from ray import cloudpickle
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler

from search.execution.failure_policy import describe_failure


class GangFailureRecorder(FIFOScheduler):
    """Schedules nothing: the study does. Notes in `reasons` what ended each gang, before its searcher is told."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reasons = reasons

    def choose_trial_to_run(self, tune_controller: TuneController) -> None:
        """Nothing: Tune starts by itself what is pending. To look for that among all there were takes ever longer."""

    def on_trial_error(self, tune_controller: TuneController, trial: Trial) -> None:
        if path := trial.pickled_error_file:  # not yet in the storage, where `trial.get_pickled_error` looks
            with open(path, "rb") as file:
                self.reasons[trial.trial_id] = describe_failure(cloudpickle.load(file))
