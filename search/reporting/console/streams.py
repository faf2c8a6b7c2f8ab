"""Where a search tells how it goes, and what came of it."""

from contextlib import suppress
from typing import Any, TextIO

from rich.console import Console


class SafeStream:
    """A standard stream that ends no search when it goes away: a pipe that its reader closed, a terminal that was lost.

    Rich would end the process, and take standard output from it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):  # what is left to be written is tried again when the process ends
            self._stream.flush()


def create_console(stream: TextIO, width: int | None = None) -> Console:
    """As wide as the terminal, unless a `width` is given."""
    return Console(file=SafeStream(stream), width=width)  # type: ignore[arg-type]
