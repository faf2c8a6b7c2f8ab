"""A gang: TorchTrainer workers that outlive a trial, run by one of Tune's actors."""

import json
import os
import sysconfig
import threading
import time
import uuid
from typing import Any

import ray
from ray import tune

from search.execution.failure_policy import FailurePolicy

POLL_S = 0.2  # how long workers that ended go unnoticed
STATUS_S = 1.0  # how long the end of the search, or a stall, goes unnoticed
STOP_S = 4.0  # how long workers may take to reach the next window once the search is to stop
CLOSE_S = 3.0  # how long workers may take to return; what is left then ends with its actors
CALL_S = 60.0  # for the registry to answer
PLACE_S = 60  # how long a gang waits for room in the cluster before its trial may go on elsewhere
GROW_S = 1800  # the same while the cluster may grow: what waits is what makes it, and a node takes minutes to come
START_S = 300.0  # how long workers that have room may take to come up and to import the task

PLACE = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # It starts a process for every gang. The registry looks for all of them which nodes are going away.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}


class Gang(tune.Trainable):
    """Runs one stretch of a trial after another in the same workers.

    Tune's trial is a stretch here: `config["stretch"]` says which trial, from which checkpoint, to which epoch.
    `config["gang"]` is the same for all: `workers`, `resources` of a worker, `placement`, whether the cluster `grows`,
    `registry`, `max_failures`, `stall_timeout` in seconds or None, and in `worker` what the workers are to know.

    A failure of a trial is a report with its outcome. What raises here ends the gang, and its trial goes on in another
    one: it found no room in the cluster, or its workers do not start.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self._settings = config["gang"]
        self._registry = self._settings["registry"]
        self._name = f"gang-{self.trial_id}"
        # Whatever looks for Ray in here must find this cluster, and no other one on the host.
        me = ray.get_runtime_context()
        os.environ["RAY_ADDRESS"] = me.gcs_address
        defaults = {**SETTINGS, PLACE: str(GROW_S if self._settings["grows"] else PLACE_S)}
        os.environ.update({key: value for key, value in defaults.items() if key not in os.environ})
        self._place_s = float(os.environ[PLACE])
        self._recovery = FailurePolicy(self._settings["max_failures"])
        self._thread = threading.Thread()
        self._answer: Any = None
        self._over = ""
        self._reset_segment()
        self._run = self._create_run_name()
        self._call_registry("register_gang", me.current_actor, me.get_node_id(), self._run)
        self._start_trainer()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        self._reset_segment()
        return True

    def _reset_segment(self) -> None:
        self._assigned = self._begun = False
        self._notes: list[str] = []
        self._recovery.start_segment(self.config["stretch"]["epoch"])

    def step(self) -> dict[str, Any]:
        """Wait for the next report of the stretch; `reports` are all that came meanwhile, as JSON.

        Raises:
            RuntimeError: There was no room for its workers, or it must move, as the report before this said; or its
                workers do not start.
        """
        if self._over:
            raise RuntimeError(f"{self._name} ends: {self._over}")
        reports = self._wait_for_reports()
        if self._notes:
            reports[0]["notes"] = [*self._notes, *reports[0].get("notes", ())]
            self._notes.clear()
        for report in reports:
            report["gang"] = self._name
        # As text: Tune would flatten it into one key per metric.
        return {"reports": json.dumps(reports), "done": reports[-1]["done"]}

    def _wait_for_reports(self) -> list[dict[str, Any]]:
        if not self._assigned:
            if not self._thread.is_alive():  # they ended with the stretch before
                last = self._restart_workers()
                if last is not None:
                    return [last]
            self._turn = self._call_registry("assign", self.config["stretch"])
            self._assigned = True
        polled = give_up_at = time.monotonic()
        stopping = False
        while not (reports := self._poll_reports()):
            now = time.monotonic()
            if now - polled > STATUS_S:
                polled = now
                status = self._call_registry("poll", self._status())
                if status["stopping"] and not stopping:
                    stopping, give_up_at = True, now + (STOP_S if status["up"] else 0.0)
                if self._is_stalled(status["stalled_s"]):
                    return [self._fail_stalled_trial()]
                if status["surplus"]:
                    return [self._release_trial("the cluster has no room for it")]
                if status["waiting_s"] > self._place_s + START_S:
                    raise RuntimeError(f"its workers did not begin within {self._place_s + START_S:.0f} s")
            if stopping and (now >= give_up_at or not self._thread.is_alive()):
                return [_build_end_report("interrupted", "the search was stopped")]
            if not self._thread.is_alive():
                last = self._restart_workers()
                if last is not None:
                    return [last]
        for report in reports:
            self._recovery.record_progress(report.get("epoch", 0))
        return reports

    def _poll_reports(self) -> list[dict[str, Any]]:
        """What the workers have reported of this stretch; nothing if nothing came for a moment."""
        # Kept until it is answered: one that was given up would swallow the first report of the next stretch.
        self._answer = self._answer or self._registry.get.remote(self._name)
        if not ray.wait([self._answer], timeout=POLL_S)[0]:
            return []
        reports: list[dict[str, Any]] = ray.get(self._answer)
        self._answer = None
        # What answers may be of a stretch that was ended in the same moment.
        return [report for report in reports if report.pop("turn") >= self._turn]

    def cleanup(self) -> None:
        """Let the workers return, so that Train itself gives their resources back."""
        if self._call_registry("close", timeout=CLOSE_S):
            self._thread.join(CLOSE_S)
        self._call_registry("unregister_gang", timeout=CLOSE_S)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the workers write the checkpoints, and the study knows where they are."""

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Nothing: a stretch names its checkpoint."""

    def _call_registry(self, what: str, *arguments: Any, timeout: float = CALL_S) -> Any:
        """The registry's answer about this gang.

        Raises:
            GetTimeoutError: There is none in time.
        """
        return ray.get(getattr(self._registry, what).remote(self._name, *arguments), timeout=timeout)

    def _status(self) -> str:
        stretch = self.config["stretch"]
        return f"trial {stretch['trial']}, from epoch {stretch['epoch']}"

    def _start_trainer(self) -> None:
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run_trainer, daemon=True, name="fit")
        self._thread.start()

    def _restart_workers(self) -> dict[str, Any] | None:
        """New workers for those that ended; or the report that ends the trial, because too many did."""
        self._run = self._create_run_name()
        old = self._call_registry("restart", self._run)
        self._begun |= old["reached"] == "begun"
        verdict = self._recovery.decide(self._failure, old["reached"], old["expected"], old["leaving"])
        if verdict.note:
            self._notes.append(verdict.note)
        if verdict.kind == "give up":
            raise RuntimeError(verdict.reason)
        if old["moves"] and verdict.kind != "fail":
            return self._release_trial("its own node is going away")
        if verdict.kind == "room":
            return self._release_trial(verdict.reason)
        self._start_trainer()
        if verdict.kind == "fail":
            self._call_registry("drop")
            return _build_end_report("failed", verdict.reason)
        return None

    def _release_trial(self, why: str) -> dict[str, Any]:
        """The report after which another gang takes up the trial, which has begun here or has not."""
        self._over = why
        return {"done": False, "waiting": why, "begun": self._begun}

    def _create_run_name(self) -> str:
        """A name for workers that are to start."""
        return f"{self._name}-{uuid.uuid4().hex[:8]}"

    def _is_stalled(self, seconds: float) -> bool:
        limit = self._settings["stall_timeout"]
        return limit is not None and seconds > limit

    def _fail_stalled_trial(self) -> dict[str, Any]:
        """The report that ends a trial which gets nowhere; its workers end too, since nothing else would free them."""
        stacks = self._call_registry("end_workers")
        text = "\n".join(f"rank {rank}:\n{stack}" for rank, stack in stacks.items())
        reason = f"stalled: nothing moved for {self._settings['stall_timeout']:g} s{_find_stall_location(stacks)}"
        return {**_build_end_report("failed", reason), "traceback": f"{reason}\n\n{text}"}

    def _run_trainer(self) -> None:
        # Imported here: the imports take seconds, in which the driver and Tune would wait for this module.
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.constants import _get_ray_train_session_dir
        from ray.train.torch import TorchConfig

        from search.execution.gang_trainer import GangTrainer

        settings = self._settings
        resources = settings["resources"]
        try:
            if settings["worker"]["objective"]:
                from trainables.worker.train_function import work_on_function as work
            else:
                from trainables.worker.worker import work
            GangTrainer(
                work,
                train_loop_config={**settings["worker"], "registry": self._registry, "gang": self._name},
                torch_config=TorchConfig(backend="gloo" if settings["worker"]["rehearsal"] else None),
                scaling_config=ScalingConfig(
                    num_workers=settings["workers"],
                    use_gpu=resources.get("GPU", 0) > 0,
                    resources_per_worker=resources,
                    placement_strategy=settings["placement"].upper(),
                ),
                run_config=RunConfig(
                    name=self._run,
                    storage_path=_get_ray_train_session_dir(),  # of this node: nothing that anybody needs
                    # One start is one fit: the gang knows what was lost, and counts it for the trial that lost it.
                    failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),  # type: ignore[call-arg]
                ),
            ).fit()
        except Exception as error:  # step() finds the thread dead, and tells this
            self._failure = error


def _find_stall_location(stacks: dict[int, str]) -> str:
    """Where the code of a stalled trial stands: the innermost line that is in no library."""
    libraries = [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]
    for stack in stacks.values():
        places = [line.strip() for line in stack.splitlines() if line.startswith("  File ")]
        own = [place for place in places if not any(library in place for library in libraries)]
        if own:
            return f", at {own[-1]}"
    return ""


def _build_end_report(outcome: str, reason: str) -> dict[str, Any]:
    return {"done": True, "outcome": outcome, "reason": reason}
