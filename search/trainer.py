"""The TorchTrainer of a gang: without the helper processes that it has no use for, and placed by the registry."""

from typing import Any

from ray.train.torch import TorchTrainer
from ray.train.v2._internal.callbacks import DatasetsCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback

from search.placement import OwnWorkers

# Each starts a process for every gang. Ray Data's has no data sets to hand out here. The cleaner works only beside
# Ray's dashboard and with one Ray on the host; the registry removes the placement group of a gang that is gone.
UNUSED = (DatasetsCallback, PlacementGroupCleanerCallback)


class GangTrainer(TorchTrainer):
    """Trains as Ray's own does."""

    def _create_default_callbacks(self) -> list[Any]:
        callbacks = super()._create_default_callbacks()  # type: ignore[misc]  # Train's v2, chosen at run time
        return [OwnWorkers(), *(callback for callback in callbacks if not isinstance(callback, UNUSED))]
