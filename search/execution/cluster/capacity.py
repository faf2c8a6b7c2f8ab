"""How many gangs may run just now, in a cluster whose nodes come and go."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from search.config import SearchConfig
from search.execution.cluster.resources import autoscaler_limits, count_fitting_gangs, get_node_resources

logger = logging.getLogger(__name__)
LOOK_S = 1.0


class CapacityMonitor:
    """Looks every second what the cluster holds.

    Args:
        worker: What one worker needs.
        registry: Of the gangs; told how many there may be.
        say: Shows a line.

    Attributes:
        gangs: How many may run. One at least: what waits for room makes a cluster grow, and says what is missing.
    """

    def __init__(
        self, config: SearchConfig, worker: Mapping[str, float], registry: Any, say: Callable[[str], None]
    ) -> None:
        self._config = config
        self._worker = worker
        self._registry = registry
        self._say = say
        self._nodes = 0
        self.gangs = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll_cluster, daemon=True, name="capacity")

    def start(self) -> None:
        self.update()
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()  # Ray ends a process that asks it for something while it shuts down

    def update(self) -> None:
        """See what there is now."""
        before, self._nodes = self._nodes, len(cluster := get_node_resources())
        growing = autoscaler_limits()
        fit = count_fitting_gangs(self._config, self._worker, cluster, growing)
        may = max_gangs(self._config.concurrency, fit, growing is not None)
        told, self.gangs = self.gangs, min(may, self._config.trials)
        self._registry.set_capacity.remote(max(fit, may))  # those beyond would be ended, and be begun again
        if told and told != self.gangs:
            self._say(f"{_describe_change(self._nodes - before)}: {self.gangs} at a time")

    def _poll_cluster(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self.update()
            except Exception:  # of whatever type, if Ray's head is busy: there is another look to come
                logger.exception("the cluster cannot be looked at")


def max_gangs(concurrency: int | None, fit: int, grows: bool) -> int:
    """How many gangs may run.

    Args:
        concurrency: What the user says, who may know more of a cluster that grows.
        fit: What the cluster holds, or may grow to.
        grows: Whether it may.
    """
    if concurrency is None:
        return max(1, fit)
    return concurrency if grows else max(1, min(concurrency, fit))


def _describe_change(nodes: int) -> str:
    """How the number of nodes changed."""
    if nodes == 0:
        return "the cluster changed"
    many = "a node" if abs(nodes) == 1 else f"{abs(nodes)} nodes"
    return f"{many} joined" if nodes > 0 else f"{many} left"
