"""Writes the runs of a search for Weights & Biases: offline, unless WANDB_MODE says otherwise."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from searchlight.search.tracking.events import Event, name_run
from searchlight.trainables.filesystem.paths import remove_tree
from searchlight.trainables.flatten import nest

if TYPE_CHECKING:
    import wandb

FOLDER = "wandb"
FAILED = ("failed", "diverged", "infeasible", "interrupted")


class WandbRuns:
    """Writes a run for each trial, in a group for the search. Its id is that of the search and of the trial.

    Args:
        folder: The folder of the search, in which the library makes the folder `wandb`.
        project: The name of the experiment.
        search_id: The id of the search, for which runs can be found again.
    """

    def __init__(self, folder: Path, project: str, group: str, search_id: str) -> None:
        import wandb

        self._library, self._folder = wandb, folder
        self._project, self._group, self._search_id = project, group, search_id
        self._open: dict[int, wandb.Run] = {}

    def write(self, number: int, events: Sequence[Event]) -> None:
        for event in events:
            if event["kind"] == "started":
                self._open[number] = self._begin(number, event)
            elif event["kind"] == "reported":
                point = {**event["metrics"], "epoch": event["epoch"], "_timestamp": event["time"] / 1000}
                self._open[number].log(point, step=event["epoch"])
            elif event["kind"] == "ended":
                run = self._open.pop(number)
                point = event["best"][0] if event["best"] is not None else {}
                best = {f"{event['group']}/{name}": value for name, value in point.items()}
                run.summary.update({"outcome": event["outcome"], "reason": event["reason"], **best})
                run.finish(exit_code=int(event["outcome"] in FAILED))

    def _begin(self, number: int, event: Event) -> "wandb.Run":
        id = f"{self._search_id[:16]}-{number}"
        for earlier in (self._folder / FOLDER).glob(f"offline-run-*-{id}"):  # of an earlier driver
            remove_tree(earlier)
        mode: Any = os.environ.get("WANDB_MODE", "offline")  # the library checks it
        return self._library.init(
            dir=str(self._folder),
            project=self._project,
            group=self._group,
            job_type="search" if event["confirms"] is None else "confirm",
            name=name_run(number, event),
            id=id,
            config=nest(event["config"]),
            mode=mode,
            resume="allow" if mode == "online" else None,
            reinit="create_new",  # several trials are open at a time
            settings=self._library.Settings(
                console="off", silent=True, disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
            ),
        )

    def close(self) -> None:
        for run in self._open.values():
            run.finish(exit_code=1)
        self._library.teardown()
