"""The best checkpoint as a model in MLflow."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ModelRequest:
    """The request of the driver to the process that logs a model."""

    reference: str  # the task as "module:Class", which that process can import
    trained: str  # the checkpoint
    code: Sequence[str]  # the task's file and the modules next to it; empty for a built-in task
    experiment: str  # that of the search's parent run
    search_id: str  # the tag by which that run is found
    register: str  # the name of the model in the registry, or ""
    params: dict[str, str]  # the trial's config by dotted name
    tags: dict[str, str]  # of the model, and of its version
