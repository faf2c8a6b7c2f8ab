"""Drains the node that it runs on when AWS is about to take it away, so that trials save and go on elsewhere.

    python -m deploy.preemption        beside `ray start`, on each spot node

AWS tells an instance two minutes ahead, and tells nobody else; Ray 2.60 does not ask.
"""

import json
import logging
import os
import time
from datetime import datetime
from functools import cache
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import ray
from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.core.generated import autoscaler_pb2

logger = logging.getLogger(__name__)

METADATA = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254")
EVERY_S = 5.0
ANSWER_S = 2.0


def main() -> None:
    """Waits for the notice, for as long as the node lives."""
    while (at := notice(METADATA)) is None:
        time.sleep(EVERY_S)
    logger.warning("This node goes at %s.", at)
    drain(at)


def notice(metadata: str) -> datetime | None:
    """When the instance will be taken away, as its metadata service says; None while it stays."""
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    try:
        token = _read(Request(f"{metadata}/latest/api/token", method="PUT", headers=lifetime))
        told = Request(f"{metadata}/latest/meta-data/spot/instance-action", headers={"X-aws-ec2-metadata-token": token})
        return datetime.fromisoformat(json.loads(_read(told))["time"])
    except (OSError, HTTPException, ValueError, KeyError) as error:  # it is asked again
        if not isinstance(error, HTTPError) or error.code != 404:  # 404: nothing is planned
            _warn(f"The metadata of this instance cannot be read: {error}.")
    return None


@cache
def _warn(line: str) -> None:
    """Once: where no AWS is, nobody ever answers."""
    logger.warning(line)


def drain(at: datetime) -> None:
    """Tells Ray that this node goes at `at`.

    Raises:
        RuntimeError: Ray does not accept it.
    """
    ray.init(address="auto", log_to_driver=False)
    try:
        context = ray.get_runtime_context()
        accepted, why = GcsClient(address=context.gcs_address).drain_node(
            context.get_node_id(),
            autoscaler_pb2.DRAIN_NODE_REASON_PREEMPTION,  # type: ignore[attr-defined]
            "the spot instance is taken away",
            int(at.timestamp() * 1000),
        )
    finally:
        ray.shutdown()
    if not accepted:
        raise RuntimeError(f"Ray must drain this node, but says: {why}")


def _read(request: Request) -> str:
    with urlopen(request, timeout=ANSWER_S) as answer:
        return str(answer.read().decode())


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s")
    main()
