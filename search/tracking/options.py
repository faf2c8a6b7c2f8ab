"""The options of trackers: MLflow and others."""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator

from searchlight.search.option import Choice, option
from searchlight.search.storage.options import StorageOptions
from searchlight.trainables.filesystem.paths import StoragePath

TRACKERS = ("mlflow", "tensorboard", "wandb", "none")


def parse_model_name(value: Any) -> Any:
    """Return the name of a registered model unchanged.

    Raises:
        ValueError: MLflow's registry does not accept the name.
    """
    if isinstance(value, str) and not re.fullmatch(r"\w[\w.\- ]{0,199}", value):
        raise ValueError(f"must be a name of letters, digits, spaces, '.', '_' or '-', but got {value!r}")
    return value


class TrackingOptions(StorageOptions):
    """What is logged, and where. By default, the database of MLflow lies beside the searches."""

    tracker: Annotated[str, Choice(TRACKERS)] = option(
        "Storage and tracking",
        "mlflow",
        "NAME",
        "Where trials are logged: mlflow, tensorboard or wandb (offline, unless WANDB_MODE is set), or none.",
    )
    register_: Annotated[str | None, BeforeValidator(parse_model_name)] = option(
        "Storage and tracking",
        None,
        "MODEL",
        "Register the best checkpoint as a model in MLflow.",
        resumable=True,
        alias="register",
    )
    experiment: str = option("Advanced", "", "NAME", "Name of the experiment in MLflow. Default: the name of the task.")
    tracking_uri: str = option(
        "Only in a YAML file", "", "", "URI of MLflow. Default: MLFLOW_TRACKING_URI, else mlflow.db in the storage."
    )

    @property
    def makes_model(self) -> bool:
        """Whether the best checkpoint becomes a model in MLflow at the end."""
        return self.register_ is not None

    def find_problems(self) -> Iterator[str]:
        """Yield a line for each contradiction with the tracker."""
        yield from super().find_problems()
        if self.makes_model and self.tracker != "mlflow":
            yield f"--register must come with --tracker mlflow, which registers models, but got {self.tracker}."

    @classmethod
    def from_stored(cls, options: Mapping[str, Any], place: StoragePath) -> Self:
        """Return these options of a search that is at `place` now, of all its stored `options` by key."""
        known = {key: options[key] for key in ("study", "experiment", "tracking_uri") if options.get(key)}
        return cls(storage=place.parent, name=place.name, **known)
