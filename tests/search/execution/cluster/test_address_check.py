import json
import platform
import socket

import pytest
import ray
from ray._private import services

from searchlight.search.errors import UsageError
from searchlight.search.execution.cluster import address_check, node_check, resources
from searchlight.search.execution.cluster.address_check import check_address
from searchlight.search.execution.cluster.node_check import (
    STOP_WAIT,
    ClusterCheck,
    NodeInfo,
    check_nodes,
    get_package_versions,
    job_stop_warning,
    probe_node,
)


@pytest.fixture
def listening():
    """An address at which somebody listens, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refusing():
    """An address at which nobody listens: it is bound, so that nobody else begins to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.parametrize(
    ("address", "line"),
    [
        (f"{scheme}://head:1", f"must be host:port.* but got {scheme}://head:1.*ray job submit")
        for scheme in ("ray", "http")
    ]
    + [(text, f"but got '{text}'. Use host:port") for text in ("head", "head:", ":6379", "head:port")],
)
def test_address_must_be_a_host_and_a_port(address, line):
    with pytest.raises(UsageError, match=line):
        check_address(address)


def test_address_must_answer_and_auto_is_this_machine(tmp_path, monkeypatch, refusing, listening):
    monkeypatch.setattr(services, "find_gcs_addresses", set)  # other tests have Rays of their own
    monkeypatch.setattr(address_check, "ANSWER_S", 0.3)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    (tmp_path / "ray").mkdir()
    with pytest.raises(UsageError, match=r"but got auto, and none runs on this machine. Use host:port, or unset it"):
        check_address("auto")
    (tmp_path / "ray" / "ray_current_cluster").write_text(refusing)  # where Ray keeps the address
    for address in ("auto", refusing):
        with pytest.raises(UsageError, match=f"must be a Ray cluster that answers, but got {refusing}: .*refused"):
            check_address(address)
    with pytest.raises(UsageError, match=f"must be a Ray cluster that answers, but {listening} said: "):
        check_address(listening)


@pytest.mark.parametrize("other", [{"ray_version": "2.59.0"}, {"python_version": "3.12.1"}, {}])
def test_driver_and_cluster_must_have_the_same_versions(listening, monkeypatch, other):
    same = {"ray_version": ray.__version__, "python_version": platform.python_version()}
    monkeypatch.setattr(address_check, "fetch_cluster_metadata", lambda address: same | other)
    if not other:
        check_address(listening)
    for number in other.values():
        with pytest.raises(UsageError, match=f"the versions of the cluster at {listening}, .*{number}.*but has "):
            check_address(listening)


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """`check_nodes` of a cluster: each node by its address, with its GPUs and what it answers.

    Those that are `gone` go away while they are asked.
    """

    def check(nodes, gpus_per_worker=None, growing=None, gone=()):
        there = [
            {"NodeID": name, "NodeManagerAddress": name, "Resources": {"CPU": 8.0, **resources}}
            for name, (resources, _) in nodes.items()
        ]
        before_and_after = iter([there, [node for node in there if node["NodeID"] not in gone]])
        monkeypatch.setattr(resources, "schedulable_nodes", lambda: next(before_and_after))
        answers = {name: said for name, (_, said) in nodes.items()}
        monkeypatch.setattr(node_check, "_run_probes", lambda asked, probe: answers)
        try:
            return check_nodes(tmp_path, gpus_per_worker, growing)
        finally:
            assert not list(tmp_path.iterdir()), "what nodes were tried with is removed"

    return check


def found(devices=0, usable=None, storage="", driver="", **others):
    return NodeInfo({**get_package_versions(), **others}, devices, usable, storage, driver)


HEAD = ({}, found())
NO_GPU_SEEN = ({"GPU": 1.0}, found(0, 0))


ONE_GPU, BLIND = ({"GPU": 1.0}, found(1, 1)), ({"GPU": 2.0}, found(2, 1))
GONE = {"spot": ({"GPU": 1.0}, "must run what the search sends it, but: it died"), "full": ({}, found(storage="x"))}


@pytest.mark.parametrize(
    ("nodes", "given"),
    [
        ({"head": HEAD, "gpu": ({"GPU": 2.0, "accelerator_type:L4": 1.0}, found(2, 2))}, {}),
        ({"head": ONE_GPU, **GONE}, {"gone": GONE}),
        ({"head": ({}, found(devices=4)), "blind": BLIND}, {"gpus_per_worker": 0.0}),
        ({"worker": NO_GPU_SEEN}, {"gpus_per_worker": 0.0}),
        ({"head": HEAD}, {"gpus_per_worker": 0.0}),
        ({"head": HEAD}, {"gpus_per_worker": 0.5, "growing": {"GPU": 8.0}}),
        ({"head": HEAD}, {"growing": {"GPU": 8.0}}),
    ],
    ids=["gpus", "nodes went away", "unseen gpus", "rehearsal on cpus", "cpus", "growing", "growing by default"],
)
def test_nodes_that_can_train_pass_the_check(asked, nodes, given):
    assert asked(nodes, **given) == ClusterCheck()


@pytest.mark.parametrize(
    ("nodes", "note"),
    [
        ({"head": HEAD, "worker": NO_GPU_SEEN}, "a rehearsal, in which CPUs train"),
        ({"head": ({}, found(devices=4))}, "node head has 4 GPUs that its Ray does not offer: `ray start` without"),
        ({"head": HEAD}, "no node of the cluster has a GPU: trials train on CPUs"),
    ],
)
def test_gpus_that_no_trial_will_use_are_noted(asked, nodes, note):
    checked = asked(nodes)
    assert any(note in line for line in checked.notes)
    assert checked.rehearsal == ("worker" in nodes)


def test_problems_of_all_nodes_are_told_together(asked, tmp_path):
    bad = {
        "old": ({}, found(torch="1.0.0")),
        "away": ({}, found(storage="cannot be written: read-only")),
        "blind": BLIND,
        "mute": ({}, "must answer within 120 s, but does not. Look at its Ray."),
    }
    with pytest.raises(UsageError) as told:
        asked({"head": HEAD, **bad})
    old, away, blind, mute = told.value.problems
    torch = get_package_versions()["torch"]
    assert old.startswith(f"node old must have torch {torch}, as the driver has, but has 1.0.0. Install")
    assert f"on node away {tmp_path} cannot be written: read-only. Use a bucket" in away
    assert blind.startswith("node blind must let torch use its 2 GPUs, but it sees 1. Install")
    assert mute == "node mute must answer within 120 s, but does not. Look at its Ray."
    with pytest.raises(UsageError, match=r"--gpus-per-worker must be 0 .* but got 0.5, and Ray sees none on its 1 nod"):
        asked({"head": HEAD}, gpus_per_worker=0.5)


@pytest.mark.parametrize("other", [({"accelerator_type:L4": 1.0}, found()), ({}, found(devices=1)), ({}, found(0, 1))])
def test_unseen_gpu_is_refused_beside_a_real_one(asked, other):
    with pytest.raises(UsageError, match="node worker must let torch use its 1 GPUs, but it sees 0"):
        asked({"other": other, "worker": NO_GPU_SEEN})


def test_old_driver_of_a_node_is_told(asked):
    with pytest.raises(UsageError, match=r"node gpu must let torch use its 1 GPUs, but it sees 0\. driver 535 is old"):
        asked({"head": HEAD, "gpu": ({"GPU": 1.0}, found(1, 0, driver="driver 535 is old"))})


def test_probe_tells_versions_devices_and_storage(tmp_path):
    def probe():
        return json.loads(json.dumps(probe_node(str(tmp_path), "node", has_gpus=False)))

    assert probe()["storage"] == "is not what the driver wrote to"
    (tmp_path / "driver").write_text("of the driver")
    answer = probe()
    assert NodeInfo(**answer) == NodeInfo(get_package_versions(), answer["devices"], None, "")
    assert get_package_versions()["torch"] != "none"
    (tmp_path / "node").unlink()
    (tmp_path / "node").mkdir()  # root writes anywhere else
    assert "cannot be written: " in probe()["storage"]


@pytest.mark.parametrize(("wait", "told"), [(None, "after 3 s"), ("10", "after 10 s"), ("30", "")])
def test_short_wait_of_a_submitted_job_is_told(wait, told, monkeypatch):
    monkeypatch.delenv(STOP_WAIT, raising=False)
    assert job_stop_warning() == "", "nobody submitted this"
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    if wait:
        monkeypatch.setenv(STOP_WAIT, wait)
    assert told in job_stop_warning()
    assert bool(job_stop_warning()) == bool(told)
