"""The options of MLflow."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BeforeValidator

from searchlight.search.option import option
from searchlight.search.storage.options import StorageOptions
from searchlight.trainables.filesystem.paths import StoragePath


def parse_model_name(value: Any) -> Any:
    """Return the name of a registered model unchanged.

    Raises:
        ValueError: MLflow's registry does not accept the name.
    """
    if isinstance(value, str) and not re.fullmatch(r"\w[\w.\- ]{0,199}", value):
        raise ValueError(f"must be a name of letters, digits, spaces, '.', '_' or '-', but got {value!r}")
    return value


class TrackingOptions(StorageOptions):
    """What is logged to MLflow, and where. By default, its database lies beside the searches."""

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

    @classmethod
    def from_stored(cls, options: Mapping[str, Any], place: StoragePath) -> Self:
        """Return these options of a search that is at `place` now, of all its stored `options` by key."""
        known = {key: options[key] for key in ("study", "experiment", "tracking_uri") if options.get(key)}
        return cls(storage=place.parent, name=place.name, **known)
