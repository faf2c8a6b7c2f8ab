"""The built-in task of ARC puzzles."""

from searchlight.trainables.arc.task import ArcTask

__all__ = ["ArcTask"]
