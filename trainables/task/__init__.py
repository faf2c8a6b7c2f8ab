"""The interface of a training task and its config."""

from trainables.task.config import TaskConfig, searchable
from trainables.task.datasets import DataSet, digest_of
from trainables.task.task import Task

__all__ = ["DataSet", "Task", "TaskConfig", "digest_of", "searchable"]
