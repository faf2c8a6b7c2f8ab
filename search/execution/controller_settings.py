"""The settings of Ray Train's controller, which it reads from the environment of its process."""

import os

PLACE_S = 60  # how long a gang waits for room in the cluster before its trial may go on elsewhere
GROW_S = 1800  # the same while the cluster may grow: what waits is what makes it, and a node takes minutes to come

PLACE = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # It starts a process for every gang. The registry looks for all of them which nodes are going away.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
CONTROLLER_VARIABLES = {PLACE, *SETTINGS}


def apply_controller_settings(grows: bool) -> float:
    """Set what the user has not set. Return how many seconds workers may wait for room.

    Args:
        grows: Whether the cluster may grow.
    """
    for name, value in {**SETTINGS, PLACE: str(GROW_S if grows else PLACE_S)}.items():
        os.environ.setdefault(name, value)
    return float(os.environ[PLACE])
