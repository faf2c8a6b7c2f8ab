"""The built-in task of ARC puzzles."""

from trainables.arc.task import ArcTask

__all__ = ["ArcTask"]
