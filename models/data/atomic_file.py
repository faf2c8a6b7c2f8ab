"""Files that other processes may read meanwhile: they are whole, or not there."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def open_atomic(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that replaces `path` at the end, unless something is raised. Its folder must exist."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException:  # a full disk or Ctrl-C: half of a file must not stay; it goes on
        os.unlink(temporary)
        raise
