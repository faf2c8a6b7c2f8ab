"""Ray Train's actor that synchronizes the ranks of a gang, started once one of them calls it.

Hardly any gang needs its process: only Ray's own `report`, which a search replaces, and `ray.train.collective` call it.
"""

from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import ray

from searchlight.trainables.private_api import SynchronizationActor


class SynchronizationOnDemand:
    """Stands for a SynchronizationActor of Ray Train, in the gang and in its workers.

    Args:
        options: The options of the actor, by name.
        arguments: The arguments of its constructor, by name.
    """

    def __init__(self, options: Mapping[str, Any], **arguments: Any) -> None:
        self._name = f"synchronization-{uuid4().hex}"
        self._options, self._arguments = options, arguments
        self._actor: Any = None  # kept, since Ray ends an actor whose creator has no handle any more

    @classmethod
    def options(cls, **options: Any) -> Any:
        """Return an object whose `remote` creates what stands for an actor with `options`, as of an actor's class."""
        return SimpleNamespace(remote=partial(cls, options))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is unpickled, it has no attributes
            raise AttributeError(name)
        if self._actor is None:  # all ranks get the same one
            create = SynchronizationActor.options(**self._options, name=self._name, get_if_exists=True)
            self._actor = create.remote(**self._arguments)
        return getattr(self._actor, name)

    def kill(self) -> None:
        """End the actor if it was started."""
        try:
            ray.kill(ray.get_actor(self._name))
        except ValueError:  # there is none
            return
