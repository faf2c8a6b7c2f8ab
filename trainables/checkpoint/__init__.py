"""Checkpoint files and directories that are complete or refused."""

from searchlight.trainables.checkpoint.file import CheckpointError, Writer, delete, link, plain, save
from searchlight.trainables.checkpoint.sharded import load

__all__ = ["CheckpointError", "Writer", "delete", "link", "load", "plain", "save"]
