"""The state of this driver, for who looks at its search."""

import time

from searchlight.search.execution.cluster.resources import CapacityMonitor
from searchlight.search.execution.searcher import StudySearcher
from searchlight.search.execution.watchdog import Watchdog
from searchlight.search.reporting.console.progress import Progress
from searchlight.search.steering.driver_state import DriverState


def describe_driver(
    searcher: StudySearcher,
    capacity: CapacityMonitor,
    watchdog: Watchdog,
    progress: Progress,
    time_limit_s: float | None,
) -> DriverState:
    """Return the present state of this driver. Another thread may call this."""
    stoppers = searcher.limits.stoppers
    left_s, basis = progress.estimate_end() or (None, "")
    return DriverState(
        time.time(),
        [*searcher.study.live],
        searcher.limits.trials,
        capacity.gangs,
        stoppers.gpu_hours,
        stoppers.meter.total,
        time_limit_s,
        left_s,
        basis,
        watchdog.waiting,
        [*progress.warnings],
    )
