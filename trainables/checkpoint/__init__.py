"""Checkpoint files and directories that are complete or refused."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from searchlight.trainables.checkpoint.file import CheckpointError, delete, link, save

if TYPE_CHECKING:
    from searchlight.trainables.checkpoint.sharded import load
    from searchlight.trainables.checkpoint.state_dict import make_plain
    from searchlight.trainables.checkpoint.writer import Writer

__all__ = ["CheckpointError", "Writer", "delete", "link", "load", "make_plain", "save"]

_MODULES = {"Writer": "writer", "load": "sharded", "make_plain": "state_dict"}


def __getattr__(name: str) -> Any:
    """Import what needs torch on its first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
