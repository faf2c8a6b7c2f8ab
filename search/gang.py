"""A gang: TorchTrainer workers that outlive a trial, run by one of Tune's actors."""

import json
import threading
from pathlib import Path
from typing import Any

import ray
from ray import tune

from search.mailbox import MailboxActor

POLL_S = 1.0  # how long a dead gang goes unnoticed
CLOSE_S = 20.0  # how long workers may take to return


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
        self._start()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self.config = new_config
        self._fresh = True
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
        answer = self._mailbox.get.remote()
        while not ray.wait([answer], timeout=POLL_S)[0]:
            if self._thread.is_alive():
                continue
            if self._starts > self._settings["max_failures"]:
                return {"done": True, "outcome": "failed", "reason": f"its gang cannot start: {self._failure}"}
            self._start()
        report: dict[str, Any] = ray.get(answer)
        self._starts = 0
        return report

    def cleanup(self) -> None:
        """Let the workers return, so that Train itself gives their resources back."""
        ray.get(self._mailbox.close.remote())
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
                    name=f"{self._name}-{self._starts}",
                    storage_path=str(Path(settings["folder"]) / "ray"),
                    failure_config=FailureConfig(max_failures=settings["max_failures"]),
                ),
            ).fit()
        except Exception as error:  # step() finds the thread dead and says this reason
            self._failure = f"{type(error).__name__}: {error}"
