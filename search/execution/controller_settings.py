"""The settings of Ray Train's controller, which reads them from environment variables."""

import os

PLACE_S = 60  # how long a gang waits for room before another gang continues its trial
GROW_S = 1800  # in a growing cluster: waiting gangs make it grow, and a new node takes minutes

PLACE = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # The watcher starts a process for every gang. The registry finds draining nodes for all of them.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
CONTROLLER_VARIABLES = {PLACE, *SETTINGS}


def apply_controller_settings(grows: bool) -> float:
    """Set variables that the user has not set. Return how many seconds workers may wait for room.

    Args:
        grows: Whether the cluster may grow.
    """
    for name, value in {**SETTINGS, PLACE: str(GROW_S if grows else PLACE_S)}.items():
        os.environ.setdefault(name, value)
    return float(os.environ[PLACE])
