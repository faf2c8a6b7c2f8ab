"""Checks that every node of a cluster can train the trials of a search."""

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from searchlight.search.errors import UsageError
from searchlight.trainables.filesystem.paths import StoragePath, parse_path, remove_tree

PROBE_S = 120.0  # timeout of a node, which downloads the search's code first
PACKAGES = ("torch", "numpy", "pydantic")  # packages that decode messages between driver and workers
STOP_WAIT, STOP_S = "RAY_JOB_STOP_WAIT_TIME_S", 30


@dataclass(frozen=True)
class NodeInfo:
    """The properties of a node of the cluster.

    Attributes:
        versions: Of PACKAGES; "none" if one is not installed.
        devices: The GPUs of its operating system.
        usable: The GPUs that torch can use, or None if that was not checked.
        storage: Why it cannot write to the storage, or "".
        driver: Why torch cannot use the GPUs that the driver shows, or "".
    """

    versions: dict[str, str]
    devices: int
    usable: int | None
    storage: str
    driver: str = ""


@dataclass(frozen=True)
class ClusterCheck:
    """The result of a check of all nodes.

    Attributes:
        notes: Lines for the user.
        rehearsal: Whether declared GPUs do not exist, so that gangs are placed by GPUs but train on CPUs.
    """

    notes: tuple[str, ...] = ()
    rehearsal: bool = False


def check_nodes(
    storage: StoragePath, gpus_per_worker: float | None, growing: Mapping[str, float] | None
) -> ClusterCheck:
    """Check that every node of the cluster can train, and write to the search's `storage`.

    Args:
        growing: The resources that an autoscaler can add.

    Raises:
        UsageError: Some nodes cannot. The message has a line for each problem.
    """
    probed = _probe_nodes(storage)
    has_real_gpus = any(
        # Ray adds the type only of GPUs that it has detected, not of declared ones.
        any(name.startswith("accelerator_type:") for name in node["Resources"])
        or (isinstance(answer, NodeInfo) and (answer.devices or answer.usable))
        for node, answer in probed
    )
    wants_gpus = gpus_per_worker != 0.0
    problems, notes, ours = [], [], get_package_versions()
    for node, answer in probed:
        name, gpus = f"node {node['NodeManagerAddress']}", _count_offered_gpus(node)
        if isinstance(answer, str):
            problems.append(f"{name} {answer}")
            continue
        problems += _find_problems(name, gpus if wants_gpus and has_real_gpus else 0.0, answer, ours, storage)
        if wants_gpus and answer.devices and not gpus:
            notes.append(
                f"{name} has {answer.devices} GPUs that its Ray does not offer: `ray start` without --num-gpus does"
            )
    offers_gpus = any(_count_offered_gpus(node) for node, _ in probed)
    has_gpus = offers_gpus or bool((growing or {}).get("GPU"))
    if gpus_per_worker and not has_gpus:
        problems.append(
            f"--gpus-per-worker must be 0 in a cluster without GPUs, but got {gpus_per_worker:g}, and Ray sees none on "
            f"its {len(probed)} nodes. If they have some: nvidia-smi must show them before `ray start`."
        )
    if problems:
        raise UsageError(*dict.fromkeys(problems))
    if not has_gpus and gpus_per_worker is None:
        notes.append("no node of the cluster has a GPU: trials train on CPUs")
    rehearsal = wants_gpus and offers_gpus and not has_real_gpus
    if rehearsal:
        notes.append("the GPUs of this cluster are declared, and none is there: a rehearsal, in which CPUs train")
    return ClusterCheck(tuple(notes), rehearsal)


def _probe_nodes(storage: StoragePath) -> list[tuple[dict[str, Any], NodeInfo | str]]:
    """Return each node with its properties, or with the reason why it did not answer."""
    from searchlight.search.execution.cluster.resources import schedulable_nodes  # imports Ray

    nodes = schedulable_nodes()
    probe = storage / f"probe-{uuid.uuid4().hex[:12]}"
    probe.mkdir(parents=True, exist_ok=True)
    try:
        (probe / "driver").write_text("of the driver")
        answers = _run_probes(nodes, probe)
    finally:
        remove_tree(probe)
    staying = {node["NodeID"] for node in schedulable_nodes()}  # spot nodes may have left meanwhile
    return [(node, answers[node["NodeID"]]) for node in nodes if node["NodeID"] in staying]


def _run_probes(nodes: Sequence[Mapping[str, Any]], probe: StoragePath) -> dict[str, NodeInfo | str]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # max_calls=1: a new process for each, since a probe makes hidden GPUs visible.
    remote_probe = ray.remote(num_cpus=0, max_calls=1, max_retries=0)(probe_node)
    asked = {}
    for node in nodes:
        identity = node["NodeID"]
        task = remote_probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(identity, soft=False))
        asked[task.remote(str(probe), identity, _count_offered_gpus(node) > 0)] = identity
    ready, late = ray.wait([*asked], num_returns=len(asked), timeout=PROBE_S)
    answers: dict[str, NodeInfo | str] = {}
    for answer in ready:
        try:
            answers[asked[answer]] = NodeInfo(**ray.get(answer))
        except ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:400]
            answers[asked[answer]] = f"must run what the search sends it, but: {reason}"
    for answer in late:
        ray.cancel(answer, force=True)
        answers[asked[answer]] = f"must answer within {PROBE_S:.0f} s, but does not. Look at its Ray."
    return answers


def probe_node(probe: str, node: str, has_gpus: bool) -> dict[str, Any]:
    """Return the NodeInfo of the node on which this runs, as a dict."""
    devices = sum(path.name.removeprefix("nvidia").isdigit() for path in Path("/dev").glob("nvidia*"))
    usable, driver = None, ""
    if has_gpus:
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides GPUs that a task did not request
        import torch

        from searchlight.trainables.gpu_driver import find_driver_problem

        driver = find_driver_problem()
        usable = 0 if driver else torch.cuda.device_count()
    return asdict(NodeInfo(get_package_versions(), devices, usable, _check_storage(parse_path(probe), node), driver))


def get_package_versions() -> dict[str, str]:
    """Return the versions of PACKAGES without the build: CPU and CUDA builds are compatible."""
    found = dict.fromkeys(PACKAGES, "none")
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name).partition("+")[0]
    return found


def _check_storage(probe: StoragePath, node: str) -> str:
    try:
        if not (probe / "driver").exists():
            return "is not what the driver wrote to"
        (probe / node).write_text("of a node")
    except OSError as error:
        return f"cannot be written: {error}"
    return ""


def _find_problems(name: str, gpus: float, found: NodeInfo, ours: Mapping[str, str], storage: StoragePath) -> list[str]:
    """Return why node `name` cannot train with `gpus` and the package versions `ours`."""
    problems = [
        f"{name} must have {package} {ours[package]}, as the driver has, but has {found.versions[package]}. "
        "Install requirements.lock on both."
        for package in PACKAGES
        if found.versions[package] != ours[package]
    ]
    if found.storage:
        problems.append(
            f"--storage must be seen by every node, but on {name} {storage} {found.storage}. "
            "Use a bucket, s3://bucket/path, or mount one file system there on all nodes."
        )
    if found.usable is not None and found.usable < gpus:
        why = found.driver or "Install torch's build for CUDA: python -c 'import torch; torch.zeros(1).cuda()'"
        problems.append(f"{name} must let torch use its {gpus:g} GPUs, but it sees {found.usable}. {why}")
    return problems


def _count_offered_gpus(node: Mapping[str, Any]) -> float:
    return float(node["Resources"].get("GPU", 0.0))


def job_stop_warning() -> str:
    """Return a warning if `ray job stop` would kill this search too early, or ""."""
    wait_s = int(os.environ.get(STOP_WAIT, "3"))
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ or wait_s >= STOP_S:
        return ""
    return (
        f"`ray job stop` kills this search after {wait_s} s: nothing is lost then, but only --resume or --replay tells "
        f'MLflow how it ended. Submit with --runtime-env-json \'{{"env_vars": {{"{STOP_WAIT}": "60"}}}}\''
    )
