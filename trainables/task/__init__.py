"""The interface of a training task and its config."""

from typing import TYPE_CHECKING

from searchlight.trainables.lazy_imports import import_on_use
from searchlight.trainables.task.config import TaskConfig, searchable

if TYPE_CHECKING:
    from searchlight.trainables.task.datasets import DataSet, digest_of
    from searchlight.trainables.task.task import Task

__all__ = ["DataSet", "Task", "TaskConfig", "digest_of", "searchable"]

# These import torch, which the driver and the workers of programs do not need.
__getattr__ = import_on_use(
    "searchlight.trainables.task", {"DataSet": "datasets", "Task": "task", "digest_of": "datasets"}
)
