"""Checks that every node of a cluster can train the trials of a search."""

import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from search.errors import UsageError
from trainables.filesystem.paths import StoragePath, parse_path, remove_tree

PROBE_S = 120.0  # of a node: it gets the code of the search first
PACKAGES = ("torch", "numpy", "pydantic")  # what travels between driver and workers is read by these
STOP_WAIT, STOP_S = "RAY_JOB_STOP_WAIT_TIME_S", 30


@dataclass(frozen=True)
class NodeInfo:
    """What a node of the cluster has.

    Attributes:
        versions: Of PACKAGES; "none" is not installed.
        devices: GPUs that its operating system shows.
        usable: GPUs that torch can use there; None: nobody asked.
        storage: Why it cannot write to the storage; empty: it can.
    """

    versions: dict[str, str]
    devices: int
    usable: int | None
    storage: str


@dataclass(frozen=True)
class ClusterCheck:
    """What came of looking at all nodes.

    Attributes:
        notes: What the user should know, a line each.
        rehearsal: Whether the cluster declares GPUs and has none: gangs are placed by them, and train on CPUs.
    """

    notes: tuple[str, ...] = ()
    rehearsal: bool = False


def check_nodes(
    storage: StoragePath, gpus_per_worker: float | None, growing: Mapping[str, float] | None
) -> ClusterCheck:
    """Whether every node of the cluster can train for a search.

    Args:
        storage: Of the search: each node writes a file there, and reads one of the driver.
        gpus_per_worker: What the user says of it.
        growing: What the cluster may grow to, if it can.

    Raises:
        UsageError: All that is wrong, a line each.
    """
    from search.execution.cluster.resources import schedulable_nodes  # imports Ray

    nodes = schedulable_nodes()
    probe = storage / f"probe-{uuid.uuid4().hex[:12]}"
    probe.mkdir(parents=True, exist_ok=True)
    try:
        (probe / "driver").write_text("of the driver")
        answers = _probe_nodes(nodes, probe)
    finally:
        remove_tree(probe)
    stay = {node["NodeID"] for node in schedulable_nodes()}
    nodes = [node for node in nodes if node["NodeID"] in stay]  # one may have gone meanwhile, as spot nodes do
    found = {id_: answer for id_, answer in answers.items() if id_ in stay and isinstance(answer, NodeInfo)}
    gpus = {node["NodeID"]: node["Resources"].get("GPU", 0.0) for node in nodes}
    real = any(each.devices or each.usable for each in found.values()) or any(
        _has_detected_gpus(n["Resources"]) for n in nodes
    )
    wanted = gpus_per_worker != 0.0
    problems, ours = [], get_package_versions()
    for node in nodes:
        answer = answers[node["NodeID"]]
        if isinstance(answer, NodeInfo):
            needed = gpus[node["NodeID"]] if wanted and real else 0.0
            problems += _find_problems(_format_node_name(node), needed, answer, ours, storage)
        else:
            problems.append(f"{_format_node_name(node)} {answer}")
    have_gpu = any(gpus.values()) or bool((growing or {}).get("GPU"))
    if gpus_per_worker and not have_gpu:
        problems.append(
            f"--gpus-per-worker must be 0 in a cluster without GPUs, but got {gpus_per_worker:g}, and Ray sees none on "
            f"its {len(nodes)} nodes. If they have some: nvidia-smi must show them before `ray start`."
        )
    if problems:
        raise UsageError(*dict.fromkeys(problems))
    notes = [
        f"{_format_node_name(node)} has {found[id_].devices} GPUs that its Ray does not offer: "
        "`ray start` without --num-gpus does"
        for node in nodes
        if wanted and found[id_ := node["NodeID"]].devices and not gpus[id_]
    ]
    if not have_gpu and gpus_per_worker is None:
        notes.append("no node of the cluster has a GPU: trials train on CPUs")
    rehearsal = wanted and any(gpus.values()) and not real
    if rehearsal:
        notes.append("the GPUs of this cluster are declared, and none is there: a rehearsal, in which CPUs train")
    return ClusterCheck(tuple(notes), rehearsal)


def _probe_nodes(nodes: Sequence[Mapping[str, Any]], probe: StoragePath) -> dict[str, NodeInfo | str]:
    """What each node has, by its id; or why it did not tell."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # A process of its own for each: it looks at GPUs which nobody gave it.
    look = ray.remote(num_cpus=0, max_calls=1, max_retries=0)(probe_node)
    asked = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        has_gpus = bool(node["Resources"].get("GPU"))
        asked[look.options(scheduling_strategy=there).remote(str(probe), node["NodeID"], has_gpus)] = node["NodeID"]
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
    """Run on a node: what it has, as `Found`."""
    return asdict(
        NodeInfo(
            get_package_versions(),
            _count_gpu_devices(),
            _count_usable_gpus() if has_gpus else None,
            _check_storage(parse_path(probe), node),
        )
    )


def get_package_versions() -> dict[str, str]:
    """Of PACKAGES, without the build: a CPU build trains as that for a GPU would on a CPU."""
    found = dict.fromkeys(PACKAGES, "none")
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found[name] = version(name).partition("+")[0]
    return found


def _count_gpu_devices() -> int:
    return len([path for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdigit()])


def _count_usable_gpus() -> int:
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # Ray hides those that a task did not ask for
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _check_storage(probe: StoragePath, node: str) -> str:
    try:
        if not (probe / "driver").exists():
            return "is not what the driver wrote to"
        (probe / node).write_text("of a node")
    except OSError as error:
        return f"cannot be written: {error}"
    return ""


def _find_problems(name: str, gpus: float, found: NodeInfo, ours: Mapping[str, str], storage: StoragePath) -> list[str]:
    """What keeps the node `name`, of which the search needs `gpus`, from training with a driver that has `ours`."""
    problems = []
    for package in PACKAGES:
        if found.versions[package] != ours[package]:
            problems.append(
                f"{name} must have {package} {ours[package]}, as the driver has, but has {found.versions[package]}. "
                "Install requirements.lock on both."
            )
    if found.storage:
        problems.append(
            f"--storage must be seen by every node, but on {name} {storage} {found.storage}. "
            "Say a bucket, s3://bucket/path, or mount one file system there on all nodes."
        )
    if found.usable is not None and found.usable < gpus:
        problems.append(
            f"{name} must let torch use its {gpus:g} GPUs, but it sees {found.usable}. Install torch's build for CUDA, "
            "and a driver that is new enough: python -c 'import torch; torch.zeros(1).cuda()'"
        )
    return problems


def _has_detected_gpus(resources: Mapping[str, float]) -> bool:
    """Whether Ray itself found GPUs on the node, whatever it was told of them."""
    return any(name.startswith("accelerator_type:") for name in resources)


def _format_node_name(node: Mapping[str, Any]) -> str:
    return f"node {node['NodeManagerAddress']}"


def job_stop_warning() -> str:
    """What somebody who will say `ray job stop` should know; empty: nothing, or this is no submitted job."""
    wait_s = int(os.environ.get(STOP_WAIT, "3"))
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ or wait_s >= STOP_S:
        return ""
    return (
        f"`ray job stop` kills this search after {wait_s} s: nothing is lost then, but only --resume or --replay tells "
        f'MLflow how it ended. Submit with --runtime-env-json \'{{"env_vars": {{"{STOP_WAIT}": "60"}}}}\''
    )
