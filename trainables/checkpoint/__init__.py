"""Checkpoint files and directories that are complete or refused."""

from typing import TYPE_CHECKING

from searchlight.trainables.checkpoint.file import CheckpointError, delete, link, save
from searchlight.trainables.lazy_imports import import_on_use

if TYPE_CHECKING:
    from searchlight.trainables.checkpoint.sharded import load
    from searchlight.trainables.checkpoint.state_dict import make_plain
    from searchlight.trainables.checkpoint.writer import Writer

__all__ = ["CheckpointError", "Writer", "delete", "link", "load", "make_plain", "save"]

# These import torch, which the driver and the workers of programs do not need.
__getattr__ = import_on_use(
    "searchlight.trainables.checkpoint", {"Writer": "writer", "load": "sharded", "make_plain": "state_dict"}
)
