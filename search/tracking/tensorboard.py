"""Writes the runs of a search for TensorBoard."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from searchlight.search.tracking.events import Event, name_run
from searchlight.trainables.filesystem.paths import remove_tree

FOLDER = "tensorboard"


class TensorBoardRuns:
    """Writes a folder for each trial: its metrics by epoch, its config as hyperparameters, and its outcome as text."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter
        from tensorboardX.summary import hparams

        self._folder, self._create, self._summarize = folder / FOLDER, SummaryWriter, hparams
        self._open: dict[int, tuple[Any, dict[str, Any]]] = {}  # writers and configs

    def write(self, number: int, events: Sequence[Event]) -> None:
        for event in events:
            if event["kind"] == "started":
                folder = self._folder / name_run(number, event)
                if folder.exists():  # of an earlier driver
                    remove_tree(folder)
                self._open[number] = self._create(str(folder)), event["config"]
            elif event["kind"] == "reported":
                writer, at = self._open[number][0], event["time"] / 1000
                for name, value in event["metrics"].items():
                    writer.add_scalar(name, value, event["epoch"], at)
            elif event["kind"] == "ended":
                self._end(number, event)
        if number in self._open:
            self._open[number][0].flush()

    def _end(self, number: int, event: Event) -> None:
        writer, config = self._open.pop(number)
        point = event["best"][0] if event["best"] is not None else {}
        best = {f"{event['group']}/{name}": value for name, value in point.items()}
        simple = {
            name: value if isinstance(value, bool | int | float) else str(value) for name, value in config.items()
        }
        writer.add_text("outcome", ": ".join(filter(None, [event["outcome"], event["reason"]])))
        for name, value in best.items():
            writer.add_scalar(name, value, 0)
        for summary in self._summarize(simple, best):  # `add_hparams` would make a run of its own
            writer.file_writer.add_summary(summary)
        writer.close()

    def close(self) -> None:
        for writer, _ in self._open.values():
            writer.close()
