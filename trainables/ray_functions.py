"""What the functions of `ray.train` and `ray.tune` do in a worker."""

from typing import Any

from searchlight.trainables.private_api import set_train_fn_utils, tune_globals


def set_ray_functions(functions: Any) -> None:
    """Replace the functions of `ray.train` by the methods of `functions`, and let those of `ray.tune` call them.

    Args:
        functions: A `TrainFnUtils` of Ray, or None outside of a worker.
    """
    set_train_fn_utils(functions)
    tune_globals["_session"] = functions and TuneSession(functions)


class TuneSession:
    """What `ray.tune` takes for the session of its trial, so that a function may report to either library.

    Attributes:
        trial_id, trial_name: None, since no trial of Tune runs here.
    """

    trial_id = trial_name = None

    def __init__(self, functions: Any) -> None:
        self._functions = functions

    @property
    def loaded_checkpoint(self) -> Any:
        return self._functions.get_checkpoint()

    @property
    def world_rank(self) -> int:
        """The rank. If it were None, as in Tune, Ray Train would refuse its own functions."""
        rank: int = self._functions.get_context().get_world_rank()
        return rank

    @property
    def experiment_name(self) -> str:
        name: str = self._functions.get_context().get_experiment_name()
        return name

    def report(self, metrics: dict[str, Any], checkpoint: Any = None) -> None:
        self._functions.report(metrics, checkpoint)
