"""Checks before the start of Ray that a search can join the cluster of RAY_ADDRESS."""

import json
import platform
import socket
from collections.abc import Mapping

from searchlight.search import private_api
from searchlight.search.errors import UsageError

ANSWER_S = 5.0  # timeout of requests to the cluster
TOKEN = (
    "RAY_AUTH_MODE=token, and its token in RAY_AUTH_TOKEN, in the file of RAY_AUTH_TOKEN_PATH or in ~/.ray/auth_token"
)


def check_address(address: str) -> None:
    """Check that a cluster accepts this driver. Ray itself would block, or end this process.

    Raises:
        UsageError: The cluster does not exist, refuses the token, or has other versions of Python and Ray.
    """
    rule = "RAY_ADDRESS must be a Ray cluster that answers"
    if "://" in address:
        raise UsageError(
            f"RAY_ADDRESS must be host:port of a cluster, or auto on one of its machines, but got {address}. "
            "From elsewhere, submit the search: ray job submit --working-dir . -- python search/run.py ..."
        )
    if address == "auto":
        try:
            address = private_api.get_ray_address_from_environment("auto", None)
        except ConnectionError:
            raise UsageError(
                f"{rule}, but got auto, and none runs on this machine. Use host:port, or unset it."
            ) from None
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{rule}, but got {address!r}. Use host:port, as `ray start --head` prints it.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError as error:
        raise UsageError(f"{rule}, but got {address}: {error}.") from error
    _check_versions(address, fetch_cluster_metadata(address))


def fetch_cluster_metadata(address: str) -> dict[str, str]:
    """Return the versions of the cluster. `ray.init` would retry a refused token for 20 s and hide the reason."""
    import grpc
    from ray.exceptions import AuthenticationError

    rule = f"the cluster at {address} must be given its token, but"
    wanted = private_api.InternalKVGetRequest(namespace=b"cluster", key=b"CLUSTER_METADATA")
    try:
        with private_api.init_grpc_channel(address, asynchronous=False) as channel:
            answer = private_api.InternalKVGcsServiceStub(channel).InternalKVGet(wanted, timeout=ANSWER_S)
    except AuthenticationError as error:
        raise UsageError(f"{rule} there is none. Set {TOKEN}.") from error
    except grpc.RpcError as error:
        if error.code() == grpc.StatusCode.UNAUTHENTICATED:
            raise UsageError(f"{rule} refused ours. Set {TOKEN}.") from None
        said = f"{error.code().name} {error.details()}"
        raise UsageError(f"RAY_ADDRESS must be a Ray cluster that answers, but {address} said: {said}.") from None
    found: dict[str, str] = json.loads(answer.value or b"{}")
    return found


def _check_versions(address: str, cluster: Mapping[str, str]) -> None:
    import ray

    ours = {"Ray": ray.__version__, "Python": platform.python_version()}
    theirs = {"Ray": cluster.get("ray_version", ours["Ray"]), "Python": cluster.get("python_version", ours["Python"])}
    if ours != theirs:
        has, got = (" and ".join(f"{name} {number}" for name, number in of.items()) for of in (theirs, ours))
        raise UsageError(
            f"the driver must have the versions of the cluster at {address}, {has}, but has {got}. "
            "Install these, or submit the search: ray job submit --working-dir . -- python search/run.py ..."
        )
