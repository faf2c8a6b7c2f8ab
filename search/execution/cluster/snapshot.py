"""A snapshot of the cluster: its placement groups, what its nodes have free, and which nodes are about to leave."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import ray
from ray.util.placement_group import placement_group_table

from trainables import private_api

GROUP = "gang-"  # what the names of gangs' placement groups begin with

Amounts = Mapping[str, float]


@dataclass(frozen=True)
class ClusterSnapshot:
    """The cluster in one moment.

    Attributes:
        groups: The gangs' placement groups in this job, by id: name and state.
        total, free: What each node has and has left, by id. A node that is going away takes nothing more, and is out.
        going: The nodes that are going away, by id, with the line that tells so.
    """

    groups: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    total: Mapping[str, Amounts] = field(default_factory=dict)
    free: Mapping[str, Amounts] = field(default_factory=dict)
    going: Mapping[str, str] = field(default_factory=dict)

    def get_group_names(self, state: str) -> frozenset[str]:
        """The names of the groups in `state`: PENDING, they wait for room; CREATED, what they have is not `free`."""
        return frozenset(name for name, own in self.groups.values() if own == state)


def take_snapshot(job: str) -> ClusterSnapshot:
    """Ask Ray. Takes milliseconds, and some more for each placement group."""
    state = private_api.cluster_state
    groups = {
        identity: (row["name"], row["state"])
        for identity, row in placement_group_table().items()
        if identity.endswith(job) and row["name"].startswith(GROUP) and row["state"] != "REMOVED"
    }
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]
    going = {
        node: f"node {nodes[node]['NodeManagerAddress']} is going away"
        for node in state.get_draining_nodes()
        if node in nodes
    }
    free: dict[str, Amounts] = state.available_resources_per_node()
    stay = [node for node in nodes if node not in going]
    total = {node: nodes[node]["Resources"] for node in stay}
    return ClusterSnapshot(groups, total, {node: free.get(node, {}) for node in stay}, going)


def fullest_fitting_node(nodes: ClusterSnapshot, need: Amounts, taken: Mapping[str, int]) -> str:
    """The node that has the least left of those that have room, or "".

    Args:
        nodes: What each has and has left.
        need: What is to be placed.
        taken: How often as much was given to a node since.
    """
    left = {
        node: {name: free.get(name, 0.0) - taken.get(node, 0) * amount for name, amount in need.items()}
        for node, free in nodes.free.items()
    }
    fitting = [node for node in left if all(left[node][name] + 1e-9 >= amount for name, amount in need.items())]
    return min(
        fitting, key=lambda node: (sum(left[node][name] / nodes.total[node][name] for name in need), node), default=""
    )
