"""Follows a file of metrics that a program writes: CSV with a header, or JSON lines."""

import csv
from collections.abc import Iterator
from pathlib import Path

from searchlight.trainables.command.collector import Measurement
from searchlight.trainables.command.output import build_measurement, parse_object


class MetricsFile:
    """Reads what a program adds to a file. What it has at first is of an earlier run and is skipped.

    The step of a row is in one of the columns STEPS, or it is the number of the row. Programs often write the whole
    file again, e.g. for a new column. Then all rows are read again, and their steps say which of them are known.

    Args:
        is_new: Whether all of it is of this run.
    """

    def __init__(self, path: Path, is_new: bool = False) -> None:
        self.path = path
        self._state: tuple[int, int, int] | None = None
        self._known = b""  # what was read, as whole lines
        self._rows = 0
        self._is_of_this_run = True
        if not is_new:
            for _ in self.read():
                pass
            self._is_of_this_run = False

    def read(self, is_complete: bool = False) -> Iterator[Measurement]:
        """Yield the new rows. A last line without an end is one only if the file is complete."""
        try:
            stat = self.path.stat()
            state = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            if state == self._state and not is_complete:
                return
            content = self.path.read_bytes()
        except OSError:  # it is not there yet
            return
        is_rewritten = not content.startswith(self._known)
        if self._state not in (None, state) and not self._is_of_this_run:
            # The first rows may be those of the earlier run, as of the same config. Who adds rows keeps the file.
            is_rewritten |= state[0] != self._state[0] or state[2] <= self._state[2]
            self._is_of_this_run = True
        self._state = state
        if not is_complete:
            content = content[: content.rfind(b"\n") + 1]
        if is_rewritten:
            self._known, self._rows = b"", 0
        lines = content[len(self._known) :].decode(errors="replace").splitlines()
        is_csv = not content.lstrip().startswith(b"{")
        if is_csv and not self._known:
            lines = lines[1:]
        self._known = content
        header = _split_row(content.partition(b"\n")[0].decode(errors="replace")) if is_csv else []
        for line in lines:
            self._rows += 1
            found = (
                build_measurement(dict(zip(header, _split_row(line), strict=False)), self.path.name)
                if is_csv
                else parse_object(line, self.path.name)
            )
            if found is not None and found.metrics:
                yield found._replace(step=self._rows if found.step is None else found.step)


def _split_row(line: str) -> list[str]:
    try:
        return [cell.strip() for cell in next(csv.reader([line]), [])]
    except csv.Error:  # e.g. a cell of more than 128 KiB: no row of metrics
        return []
