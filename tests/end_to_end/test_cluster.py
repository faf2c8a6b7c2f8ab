"""Searches on a cluster of several nodes, beside another Ray on the same machine, and without Ray's dashboard."""

import gc
import json
import threading
import time
import weakref

import pytest
import ray
from mlflow.tracking import MlflowClient
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason
from ray.util import placement_group, placement_group_table, remove_placement_group

from searchlight.search.execution.cluster.connection import shut_down
from tests.end_to_end.processes import contains, wait_until


@pytest.fixture
def cluster(monkeypatch, make_cli):
    """Makes a cluster with a head and nodes of so many CPUs each, and a command line that finds it."""
    made = []

    def make(nodes, cpus=1):
        cli = make_cli()
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", cli.env["RAY_AUTH_TOKEN_PATH"])
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        made.append(cluster)
        added = [cluster.add_node(num_cpus=cpus, resources={"slot": 2}) for _ in range(nodes)]
        cli.env["RAY_ADDRESS"] = cluster.address
        return cluster, added, cli

    yield make
    ray.shutdown()
    for cluster in made:
        cluster.shutdown()


def join(cluster):
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")


def gangs():
    """The nodes that the workers of each gang are on."""
    groups = placement_group_table().values()
    return [
        set(group["bundles_to_node_id"].values())
        for group in groups
        if group["name"].startswith("gang-") and group["state"] == "CREATED"
    ]


@pytest.mark.slow
def test_trials_of_a_lost_node_continue_elsewhere(cluster):
    found, nodes, cli = cluster(nodes=2)
    join(found)
    options = ["--trials", "3", "--concurrency", "2", "--scheduler", "none", "--name", "lossy", "--json"]
    gate = cli.folder / "go"  # trials of two epochs wait for this file
    process = cli.start("toy.py:Toy", *options, "--set", "epochs=6", "how=held", f"marker={gate}")
    journal = cli.folder / "runs" / "lossy" / "study.journal"
    wait_until(lambda: contains(journal, '"report/1"', times=2), process)  # one of each trial
    found.remove_node(nodes[1], allow_graceful=False)
    joined = found.add_node(num_cpus=1)
    wait_until(lambda: {joined.node_id} in gangs(), process, seconds=60)
    gate.touch()
    out, err = process.communicate(timeout=600)
    assert out, err
    assert json.loads(out)["outcomes"] == {"completed": 3}, err
    assert "and continues from its last checkpoint" in err
    assert "fp16 is left out of the search: its workers have no GPU" in err


@pytest.mark.slow
def test_trial_on_a_drained_node_repeats_no_window(cluster):
    """And it is spread over as many nodes as it has workers, and waits for room that another job has."""
    found, nodes, cli = cluster(nodes=3)
    join(found)
    windows = cli.folder / "windows"
    options = ["--trials", "1", "--workers", "2", "--placement", "spread", "--max-failures", "0", "--name", "drained"]
    options += ["--no-preflight"]  # the audit trains windows, too
    values = ["epochs=3", "pause_s=0.2", "precision=fp32", f"marker={windows}"]
    process = cli.start("counted.py:Counted", *options, "--json", "--set", *values)
    wait_until(lambda: contains(windows, "\n1 "))
    ((drained, other),) = gangs()
    (free,) = {node.node_id for node in nodes} - {drained, other}
    taken = placement_group([{"CPU": 1}], bundle_label_selector=[{"ray.io/node-id": free}])
    assert taken.wait(20)
    drain(found, drained)
    wait_until(lambda: "PENDING" in {group["state"] for group in placement_group_table().values()}, seconds=60)
    remove_placement_group(taken)
    out, err = process.communicate(timeout=600)
    assert out, err
    assert json.loads(out)["outcomes"] == {"completed": 1}, err
    assert "is going away, and it continues elsewhere from epoch" in err
    trained = [line.split() for line in windows.read_text().splitlines()]
    assert len({tuple(window) for window in trained}) == len(trained) == 3 * 16
    assert {rank for _, rank, _, _ in trained} == {"0", "1"}


def drain(cluster, node):
    """The notice that a cloud takes a node away."""
    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline_ms = int((time.time() + 60) * 1000)
    accepted, why = ray._raylet.GcsClient(address=cluster.address).drain_node(node, reason, "spot", deadline_ms)
    assert accepted, why


@pytest.mark.slow
def test_stopped_trials_leave_no_placement_group(cluster):
    """Train's own cleaner needs the dashboard, and dies where several instances of Ray share a machine.

    Gangs are packed: both of them fit onto one node.
    """
    other, _, _ = cluster(nodes=0)
    found, _, cli = cluster(nodes=2, cpus=2)
    assert other.address != found.address
    join(found)
    seen, over = [], threading.Event()

    def look():
        while not over.wait(0.2):
            seen.append(gangs())

    looking = threading.Thread(target=look)
    looking.start()
    options = ["--trials", "6", "--name", "beside", "--json", "--resource", "slot=1", "--set", "precision=fp32"]
    try:
        done = cli.run("toy.py:Toy", "--concurrency", "2", *options)
    finally:
        over.set()
        looking.join()
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["outcomes"]) == {"completed", "pruned"}
    assert "2 trials at a time, each with 1 worker of 1 CPU + 1 slot" in done.stderr
    assert max(len(both) for both in seen) == 2
    assert all(len(both) < 2 or both[0] == both[1] for both in seen), seen
    wait_until(lambda: ray.available_resources().get("CPU") == 4.0, seconds=20)
    assert {row["state"] for row in placement_group_table().values()} == {"REMOVED"}


@pytest.mark.slow
def test_search_whose_head_is_killed_ends_in_good_order(cluster):
    found, _, cli = cluster(nodes=1)
    (temporary := cli.folder / "temporary").mkdir()
    cli.env["TMPDIR"] = str(temporary)
    cli.has_mlflow = True
    process = cli.start("toy.py:Toy", "--trials", "50", "--name", "headless", "--set", "pause_s=0.2")
    wait_until(lambda: contains(cli.folder / "runs" / "headless" / "study.journal", "report/1"), process)
    for name in ("gcs_server", "raylet"):
        (own,) = found.head_node.all_processes[name]
        own.process.kill()
    killed_at = time.monotonic()
    done = cli.finished(process)
    assert time.monotonic() - killed_at < 120
    assert (done.returncode, done.stdout) == (1, "")
    hint, ending = done.stderr.splitlines()[-2:]
    assert hint.startswith("nothing of search headless is lost. Resume it: ")
    assert ending == f"the search has ended: the head of the Ray cluster at {found.address} has not answered for 20 s."
    client = MlflowClient(f"sqlite:///{cli.folder}/runs/mlflow.db")
    runs = client.search_runs([client.get_experiment_by_name("Toy").experiment_id])
    assert sorted({run.info.status for run in runs}) == ["FAILED", "KILLED"], "the parent, and the trials"
    assert not [*temporary.glob("searchlight*")], "the search removes its temporary folders"


def test_no_garbage_is_collected_while_ray_shuts_down(monkeypatch):
    class Held:
        """Something that only a collection of garbage frees."""

        def __init__(self):
            self.me = self

    held = weakref.ref(Held())
    seen = []
    monkeypatch.setattr("ray.shutdown", lambda: seen.append((held(), gc.isenabled())))
    shut_down()
    assert seen == [(None, False)]
    assert gc.isenabled()
