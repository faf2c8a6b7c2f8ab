"""A gang: TorchTrainer workers that outlive a trial, run by one of Tune's actors."""

import json
import os
import sysconfig
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import ray
from ray import tune
from ray.exceptions import OutOfMemoryError, RayActorError

POLL_S = 0.2  # how long workers that ended go unnoticed
STATUS_S = 1.0  # how long the end of the search, or a stall, goes unnoticed
STOP_S = 4.0  # how long workers may take to reach the next window once the search is to stop
CLOSE_S = 3.0  # how long workers may take to return; what is left then ends with its actors
PLACE_S = 60  # how long a gang waits for room in the cluster before its trial may go on elsewhere

SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(PLACE_S),
    "RAY_TRAIN_METRICS_ENABLED": "0",
}


class Gang(tune.Trainable):
    """Runs one stretch of a trial after another in the same workers.

    Tune's trial is a stretch here: `config["stretch"]` says which trial, from which checkpoint, to which epoch.
    `config["gang"]` is the same for all: `task`, `workers`, `resources` of a worker, `folder`, `registry`,
    `max_failures`, `stall_timeout` in seconds or None, and what the workers are to know.

    A failure is a report with its outcome, since raising costs the gang. It raises only when it found no room in the
    cluster: then its trial goes on in another gang.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self._settings = config["gang"]
        self._registry = self._settings["registry"]
        self._name = f"gang-{self.trial_id}"
        # Whatever looks for Ray in here must find this cluster, and no other one on the host.
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
        os.environ.update({key: value for key, value in SETTINGS.items() if key not in os.environ})
        self._registry.enter.remote(self._name, ray.get_runtime_context().current_actor)
        self._fresh = True
        self._losses = 0
        self._failed_starts = 0
        self._no_room = False
        self._notes: list[str] = []
        self._answer: Any = None
        self._start()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        self._fresh = True
        self._losses = 0
        return True

    def step(self) -> dict[str, Any]:
        """Wait for the next report of the stretch; `reports` are all that came meanwhile, as JSON.

        Raises:
            RuntimeError: There was no room for its workers. The report before this said so.
        """
        if self._no_room:
            raise RuntimeError(f"no room for the workers of {self._name}")
        reports = self._next_reports()
        # As text: Tune would flatten it into one key per metric.
        return {"reports": json.dumps(reports), "done": reports[-1]["done"]}

    def _next_reports(self) -> list[dict[str, Any]]:
        if self._fresh:
            ray.get(self._registry.assign.remote(self._name, self.config["stretch"]))
            self._fresh = False
        # Kept until it is answered: one that was given up would swallow the first report of the next stretch.
        self._answer = self._answer or self._registry.get.remote(self._name)
        polled = give_up_at = time.monotonic()
        stopping = False
        while not ray.wait([self._answer], timeout=POLL_S)[0]:
            now = time.monotonic()
            if now - polled > STATUS_S:
                polled = now
                status = ray.get(self._registry.poll.remote(self._name, self._doing()))
                if status["stopping"] and not stopping:
                    stopping, give_up_at = True, now + (STOP_S if status["up"] else 0.0)
                if self._stalled(status["stalled_s"]):
                    return [self._end_stalled()]
            if stopping and now >= give_up_at:
                return [_ended("interrupted", "the search was stopped")]
            if not self._thread.is_alive():
                last = self._start_again()
                if last is not None:
                    return [last]
        reports: list[dict[str, Any]] = ray.get(self._answer)
        self._answer = None
        self._losses = self._failed_starts = 0
        if self._notes:
            reports[0]["notes"] = [*self._notes, *reports[0].get("notes", ())]
            self._notes.clear()
        return reports

    def cleanup(self) -> None:
        """Let the workers return, so that Train itself gives their resources back."""
        ray.get(self._registry.close.remote(self._name), timeout=CLOSE_S)
        self._thread.join(CLOSE_S)
        ray.get(self._registry.leave.remote(self._name), timeout=CLOSE_S)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the workers write the checkpoints, and the study knows where they are."""

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Nothing: a stretch names its checkpoint."""

    def _doing(self) -> str:
        stretch = self.config["stretch"]
        return f"trial {stretch['trial']}, from epoch {stretch['epoch']}"

    def _start(self) -> None:
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._fit, daemon=True, name="fit")
        self._thread.start()

    def _start_again(self) -> dict[str, Any] | None:
        """New workers for those that ended, or the report that ends the trial because too many did."""
        old = ray.get(self._registry.restart.remote(self._name))
        if old["worn"]:
            self._notes.append(f"begins in new workers: {old['worn']}")
        failure, limit = self._failure, self._settings["max_failures"]
        if failure is not None:
            reason = describe(failure)
            if old["begun"] and isinstance(_causes(failure)[-1], OutOfMemoryError):  # it would take as much again
                return _ended("failed", f"out of memory: {reason}")
            if _found_no_room(failure):
                self._no_room = True
                return {"done": False, "waiting": reason, "notes": self._notes}
            self._losses += old["begun"]
            self._failed_starts += not old["came_up"]
            if self._losses > limit:
                return _ended("failed", f"its workers were lost {self._losses} times: {reason}")
            if self._failed_starts > limit:
                return _ended("failed", f"its gang cannot start: {reason}")
            if old["begun"]:
                self._notes.append(f"lost its workers ({reason}), and goes on from its last checkpoint")
        self._start()
        return None

    def _stalled(self, seconds: float) -> bool:
        limit = self._settings["stall_timeout"]
        return limit is not None and seconds > limit

    def _end_stalled(self) -> dict[str, Any]:
        """The report that ends a trial which gets nowhere; its workers end too, since nothing else would free them."""
        stacks = ray.get(self._registry.end_workers.remote(self._name))
        text = "\n".join(f"rank {rank}:\n{stack}" for rank, stack in stacks.items())
        reason = f"stalled: nothing moved for {self._settings['stall_timeout']:g} s{_place(stacks)}"
        return {**_ended("failed", reason), "traceback": f"{reason}\n\n{text}"}

    def _fit(self) -> None:
        # Imported here: the imports take seconds, in which the driver and Tune would wait for this module.
        from ray.train import FailureConfig, RunConfig, ScalingConfig

        from search.trainer import GangTrainer

        settings = self._settings
        resources = settings["resources"]
        try:
            if settings["worker"]["objective"]:
                from trainables.function import work_on_function as work
            else:
                from trainables.worker import work
            GangTrainer(
                work,
                train_loop_config={**settings["worker"], "registry": self._registry, "gang": self._name},
                scaling_config=ScalingConfig(
                    num_workers=settings["workers"],
                    use_gpu=resources.get("GPU", 0) > 0,
                    resources_per_worker=resources,
                ),
                run_config=RunConfig(
                    name=f"{self._name}-{uuid.uuid4().hex[:8]}",
                    storage_path=str(Path(settings["folder"]) / "ray"),
                    # One start is one fit: the gang knows what was lost, and counts it for the trial that lost it.
                    failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),  # type: ignore[call-arg]
                ),
            ).fit()
        except Exception as error:  # step() finds the thread dead, and tells this
            self._failure = error


def describe(failure: BaseException) -> str:
    """One line of what ended a gang's workers."""
    cause = _causes(failure)[-1]
    text = " ".join(str(cause).split())
    if isinstance(cause, OutOfMemoryError):
        return "Ray's memory monitor killed it, since its node ran out"
    if isinstance(cause, RayActorError) and "node" in text and "died" in text and "unexpectedly exits" not in text:
        return "its node was lost"
    if isinstance(cause, RayActorError) and "unexpectedly exits" in text:
        return "a process was killed or crashed"
    return f"{type(cause).__name__}: {text[:300]}"


def _causes(failure: BaseException) -> list[BaseException]:
    """`failure` and what Train and Ray wrapped in it, outermost first."""
    causes = [failure]
    while True:
        inner = getattr(causes[-1], "worker_failures", None) or getattr(causes[-1], "controller_failure", None)
        if isinstance(inner, dict):
            inner = inner[min(inner)]
        inner = inner or getattr(causes[-1], "health_check_failure", None) or getattr(causes[-1], "cause", None)
        if not isinstance(inner, BaseException):
            return causes
        causes.append(inner)


def _found_no_room(failure: BaseException) -> bool:
    return any(type(cause).__name__ == "WorkerGroupStartupTimeoutError" for cause in _causes(failure))


def _place(stacks: dict[int, str]) -> str:
    """Where the code of a stalled trial stands: the innermost line that is in no library."""
    libraries = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]
    for stack in stacks.values():
        places = [line.strip() for line in stack.splitlines() if line.startswith("  File ")]
        own = [place for place in places if not any(library in place for library in libraries)]
        if own:
            return f", at {own[-1]}"
    return ""


def _ended(outcome: str, reason: str) -> dict[str, Any]:
    return {"done": True, "outcome": outcome, "reason": reason}
