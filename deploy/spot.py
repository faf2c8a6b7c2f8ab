"""AWS nodes for Ray's cluster launcher: what spot cannot give is taken on demand."""

import logging
from typing import Any

from ray.autoscaler._private.aws.node_provider import AWSNodeProvider
from ray.autoscaler.node_launch_exception import NodeLaunchException

logger = logging.getLogger(__name__)

# Codes of EC2. Others, such as a role that is missing, would refuse an on-demand node too, or should be seen.
NO_SPOT = ("InsufficientInstanceCapacity", "MaxSpotInstanceCountExceeded", "SpotMaxPriceTooLow")


class SpotFirst(AWSNodeProvider):
    """Ray's AWS provider, which launches on demand what is not to be had as spot in any zone.

    Ray 2.60's autoscaler ranks a node type lower whose nodes come and never start, but not one whose launch is refused,
    so that it would ask for the same spot node every few seconds for as long as it is wanted.
    """

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> dict[str, Any]:
        """Launches `count` nodes, and of a spot type the rest on demand if there are too few."""
        if "InstanceMarketOptions" not in node_config:
            return dict(super().create_node(node_config, tags, count))
        try:
            created = dict(super().create_node(node_config, tags, count))
        except NodeLaunchException as refused:
            if refused.category not in NO_SPOT:
                raise
            logger.warning("No spot node for %s (%s).", node_config["InstanceType"], refused.category)
            created = {}
        missing = count - len(created)
        if missing:
            logger.warning("Launching %d of %d nodes on demand.", missing, count)
            on_demand = {name: value for name, value in node_config.items() if name != "InstanceMarketOptions"}
            created |= super().create_node(on_demand, tags, missing)
        return created
