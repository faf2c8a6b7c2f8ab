"""Checkpoint files and directories that are complete or refused."""

from trainables.checkpoint.file import CheckpointError, Writer, delete, link, load, plain, save

__all__ = ["CheckpointError", "Writer", "delete", "link", "load", "plain", "save"]
