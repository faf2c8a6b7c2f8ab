"""The built-in task of the language model."""

from searchlight.trainables.lm.task import LmTask

__all__ = ["LmTask"]
