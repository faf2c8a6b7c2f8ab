"""The settings of Ray Train's controller, which reads them from environment variables."""

import os

PLACE_S = 60  # how long a gang waits for room before another gang continues its trial
GROW_S = 1800  # in a growing cluster: waiting gangs make it grow, and a new node takes minutes

PLACE = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
LEAVE = "TORCH_PROCESS_GROUP_SHUTDOWN_TIMEOUT_S"
SETTINGS = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # The watcher starts a process for every gang. The registry finds draining nodes for all of them.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # How long ranks may take to leave their group before they are killed. If one has failed, the others wait for it.
    LEAVE: "3",
}
# A collective that hangs on a GPU ends the workers, and the trial continues from its last checkpoint.
NCCL_SETTINGS = {"RAY_TRAIN_ENABLE_NCCL_HANG_DETECTOR": "1", "RAY_TRAIN_NCCL_RAS_ACTION": "fail"}
CONTROLLER_VARIABLES = {PLACE, *SETTINGS, *NCCL_SETTINGS}


def apply_controller_settings(grows: bool, has_nccl: bool) -> float:
    """Set variables that the user has not set. Return how many seconds workers may wait for room.

    Args:
        grows: Whether the cluster may grow.
        has_nccl: Whether the ranks of a gang exchange tensors of GPUs.
    """
    own = {**SETTINGS, **(NCCL_SETTINGS if has_nccl else {}), PLACE: str(GROW_S if grows else PLACE_S)}
    for name, value in own.items():
        os.environ.setdefault(name, value)
    return float(os.environ[PLACE])
