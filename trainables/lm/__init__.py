"""The built-in task of the language model."""

from trainables.lm.task import LmTask

__all__ = ["LmTask"]
