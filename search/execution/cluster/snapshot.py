"""A snapshot of the cluster: its placement groups, free resources, and draining nodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import ray
from ray.util.placement_group import placement_group_table

from searchlight.search import private_api

GROUP = "gang-"  # prefix of the names of gangs' placement groups
Amounts = Mapping[str, float]  # of resources, by name


@dataclass(frozen=True)
class ClusterSnapshot:
    """The state of the cluster. `total` and `free` omit draining nodes, which accept no more work."""

    groups: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # name and state of gangs' groups, by id
    total: Mapping[str, Amounts] = field(default_factory=dict)  # resources of each node, by id
    free: Mapping[str, Amounts] = field(default_factory=dict)
    going: Mapping[str, str] = field(default_factory=dict)  # a line about each draining node, by id

    def get_group_names(self, state: str) -> frozenset[str]:
        """Return the names of the placement groups in `state`: PENDING groups wait, CREATED groups hold resources."""
        return frozenset(name for name, own in self.groups.values() if own == state)


def take_snapshot(job: str) -> ClusterSnapshot:
    """Query Ray. This takes milliseconds, and more for each placement group."""
    state = private_api.cluster_state
    groups = {
        identity: (row["name"], row["state"])
        for identity, row in placement_group_table().items()
        if identity.endswith(job) and row["name"].startswith(GROUP) and row["state"] != "REMOVED"
    }
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}  # type: ignore[no-untyped-call]
    leaving = nodes.keys() & state.get_draining_nodes()
    going = {node: f"node {nodes[node]['NodeManagerAddress']} is going away" for node in leaving}
    free: dict[str, Amounts] = state.available_resources_per_node()
    stay = [node for node in nodes if node not in going]
    total = {node: nodes[node]["Resources"] for node in stay}
    return ClusterSnapshot(groups, total, {node: free.get(node, {}) for node in stay}, going)


def has_died(actor: str) -> bool:
    """Return whether the actor with this identifier in hexadecimal digits has ended for good. Query Ray."""
    return bool(private_api.cluster_state.actor_table(actor).get("State") == "DEAD")


def fullest_fitting_node(nodes: ClusterSnapshot, need: Amounts, taken: Mapping[str, int]) -> str:
    """Return the node with room for `need` that has the least left, or "".

    Args:
        taken: How many times `need` was placed on each node since the snapshot, by node.
    """
    left = {
        node: {name: free.get(name, 0.0) - taken.get(node, 0) * amount for name, amount in need.items()}
        for node, free in nodes.free.items()
    }
    fitting = [node for node in left if all(left[node][name] + 1e-9 >= amount for name, amount in need.items())]
    return min(
        fitting, key=lambda node: (sum(left[node][name] / nodes.total[node][name] for name in need), node), default=""
    )
