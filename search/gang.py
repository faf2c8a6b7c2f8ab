"""A gang: TorchTrainer workers that outlive a trial, run by one of Tune's actors."""

import json
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import ray
from ray import tune

from search.mailbox import MailboxActor

POLL_S = 1.0  # how long a dead gang or the end of the search goes unnoticed
STOP_S = 4.0  # how long workers may take to reach the next window once the search is to stop
CLOSE_S = 3.0  # how long workers may take to return; what is left then ends with its actors


class Gang(tune.Trainable):
    """Runs one stretch of a trial after another in the same workers.

    Tune's trial is a stretch here: `config["stretch"]` says which trial, from which checkpoint, to which epoch.
    `config["gang"]` is the same for all: `task`, `workers`, `resources` of a worker, `folder`, `stop`,
    `max_failures`. No report is an error: raising would cost the gang, a failure is a report with its outcome.
    """

    def setup(self, config: dict[str, Any]) -> None:
        self._settings = config["gang"]
        self._name = f"gang-{self.trial_id}"
        self._mailbox = MailboxActor.remote(self._settings["max_failures"])
        self._starts = 0
        self._fresh = True
        self._answer: Any = None
        self._start()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        self._fresh = True
        self._starts = 0
        return True

    def step(self) -> dict[str, Any]:
        """Wait for the next report of the stretch."""
        report = self._next_report()
        # As text: Tune would flatten it into one key per metric.
        return {"report": json.dumps(report), "done": report["done"]}

    def _next_report(self) -> dict[str, Any]:
        if self._fresh:
            ray.get(self._mailbox.assign.remote(self.config["stretch"]))
            self._fresh = False
        # Kept until it is answered: one that was given up would swallow the first report of the next stretch.
        self._answer = self._answer or self._mailbox.get.remote()
        give_up_at: float | None = None
        while not ray.wait([self._answer], timeout=POLL_S)[0]:
            if give_up_at is None and ray.get(self._settings["stop"].is_set.remote()):
                give_up_at = time.monotonic() + STOP_S
            if give_up_at is not None and time.monotonic() > give_up_at:
                return {"done": True, "outcome": "interrupted", "reason": "the search was stopped"}
            if self._thread.is_alive():
                continue
            if self._starts > self._settings["max_failures"]:
                return {"done": True, "outcome": "failed", "reason": f"its gang cannot start: {self._failure}"}
            self._start()
        report: dict[str, Any] = ray.get(self._answer)
        self._answer = None
        self._starts = 0
        return report

    def cleanup(self) -> None:
        """Let the workers return, so that Train itself gives their resources back."""
        ray.get(self._mailbox.close.remote(), timeout=CLOSE_S)
        self._thread.join(CLOSE_S)

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Nothing: the workers write the checkpoints, and the study knows where they are."""

    def load_checkpoint(self, checkpoint: dict[str, Any] | None) -> None:
        """Nothing: a stretch names its checkpoint."""

    def _start(self) -> None:
        self._starts += 1
        self._failure = ""
        self._thread = threading.Thread(target=self._fit, daemon=True, name="fit")
        self._thread.start()

    def _fit(self) -> None:
        # Imported here: the imports take seconds, in which the driver and Tune would wait for this module.
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer

        from trainables.worker import work

        settings = self._settings
        resources = settings["resources"]
        try:
            TorchTrainer(
                work,
                train_loop_config={"mailbox": self._mailbox, "task": settings["task"], "stop": settings["stop"]},
                scaling_config=ScalingConfig(
                    num_workers=settings["workers"],
                    use_gpu=resources.get("GPU", 0) > 0,
                    resources_per_worker=resources,
                ),
                run_config=RunConfig(
                    name=f"{self._name}-{uuid.uuid4().hex[:8]}",
                    storage_path=str(Path(settings["folder"]) / "ray"),
                    failure_config=FailureConfig(max_failures=settings["max_failures"]),
                ),
            ).fit()
        except Exception as error:  # step() finds the thread dead and says this reason
            self._failure = f"{type(error).__name__}: {error}"
