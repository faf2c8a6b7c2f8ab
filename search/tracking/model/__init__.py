"""The best checkpoint as a model in MLflow."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ModelRequest:
    """What the driver asks of the process that makes a model.

    Attributes:
        reference: The task as "module:Class", which that process can import.
        trained: The checkpoint.
        code: The task's file and the modules beside it; empty for a built-in task.
        experiment: The experiment of the search's parent run.
        search_id: The tag by which that run is found.
        register: The name of the model in the registry; empty if it is not registered.
        params: The params of the model: the trial's config by dotted name.
        tags: The tags of the model, and of its version.
    """

    reference: str
    trained: str
    code: Sequence[str]
    experiment: str
    search_id: str
    register: str
    params: dict[str, str]
    tags: dict[str, str]
