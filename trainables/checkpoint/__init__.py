"""Checkpoint files and directories that are complete or refused."""

from searchlight.trainables.checkpoint.file import CheckpointError, delete, link, save
from searchlight.trainables.checkpoint.sharded import load
from searchlight.trainables.checkpoint.state_dict import make_plain
from searchlight.trainables.checkpoint.writer import Writer

__all__ = ["CheckpointError", "Writer", "delete", "link", "load", "make_plain", "save"]
