"""Tells Ray what its cluster may grow to, so that a search asks for nodes that are not there yet.

    python -m deploy.limits ~/ray_bootstrap_config.yaml                       of Ray's cluster launcher, on the head
    python -m deploy.limits 8 CPU=8 GPU=1 -- python search/run.py arc ...     8 nodes like this; then runs the command

Ray has a place for it, which drivers read, but of Ray 2.60's autoscalers none writes there.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
import yaml
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated.autoscaler_pb2 import ClusterConfig, NodeGroupConfig  # type: ignore[attr-defined]

USAGE = "Usage: python -m deploy.limits FILE | NODES NAME=AMOUNT... [-- COMMAND...]"


def main(arguments: Sequence[str]) -> None:
    """Reports the limits, and becomes the command after `--`, if there is one."""
    given, command = _split(arguments)
    kinds = node_types(given)
    ray.init(address="auto", log_to_driver=False)
    try:
        report(kinds)
    finally:
        ray.shutdown()
    if command:
        os.execvp(command[0], command)


def report(kinds: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the limits to the cluster that this process is connected to.

    Args:
        kinds: As `available_node_types` of Ray's cluster launcher, of which `max_workers` and `resources` are read.
    """
    groups = [
        NodeGroupConfig(name=name, max_count=kind.get("max_workers", 0), resources=kind.get("resources", {}))
        for name, kind in kinds.items()
    ]
    client = GcsClient(address=ray.get_runtime_context().gcs_address)
    client.report_cluster_config(ClusterConfig(node_group_configs=groups).SerializeToString())


def node_types(given: Sequence[str]) -> dict[str, Any]:
    """What the command line says, or the file that it names."""
    match given:
        case [count, *amounts] if count.isdigit() and amounts and all(_is_amount(text) for text in amounts):
            resources = {name: int(amount) for name, amount in (text.split("=", 1) for text in amounts)}
            return {"worker": {"max_workers": int(count), "resources": resources}}
        case [file]:
            return dict(yaml.safe_load(Path(file).expanduser().read_text())["available_node_types"])
    raise SystemExit(USAGE)


def _is_amount(text: str) -> bool:
    name, _, amount = text.partition("=")
    return bool(name) and amount.isdigit()


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    given = list(arguments)
    if "--" not in given:
        return given, []
    at = given.index("--")
    return given[:at], given[at + 1 :]


if __name__ == "__main__":
    main(sys.argv[1:])
