"""The interface of a training task and its config."""

from searchlight.trainables.task.config import TaskConfig, searchable
from searchlight.trainables.task.datasets import DataSet, digest_of
from searchlight.trainables.task.task import Task

__all__ = ["DataSet", "Task", "TaskConfig", "digest_of", "searchable"]
