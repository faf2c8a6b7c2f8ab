"""Searches on a cluster of several nodes, beside another Ray on the same machine, and without Ray's dashboard."""

import gc
import json
import time
import weakref

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util import placement_group_table

from search.cluster import shut_down


@pytest.fixture
def cluster(monkeypatch, make_cli):
    """Makes a cluster with a head and nodes of one CPU each, and a command line that finds it."""
    made = []

    def make(nodes):
        cli = make_cli()
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", cli.env["RAY_AUTH_TOKEN_PATH"])
        monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "18")  # how long a gang waits for room
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        made.append(cluster)
        added = [cluster.add_node(num_cpus=1, resources={"slot": 2}) for _ in range(nodes)]
        cli.env["RAY_ADDRESS"] = cluster.address
        return cluster, added, cli

    yield make
    ray.shutdown()
    for cluster in made:
        cluster.shutdown()


def wait_for(journal, text, seconds):
    deadline = time.monotonic() + seconds
    while not (journal.exists() and text in journal.read_text()):
        assert time.monotonic() < deadline, f"no {text} within {seconds} s"
        time.sleep(0.2)


def test_trials_of_a_node_that_is_lost_go_on_elsewhere_and_the_terminal_says_what_is_waited_for(cluster):
    found, nodes, cli = cluster(nodes=2)
    options = ["--trials", "3", "--scheduler", "none", "--name", "lossy", "--json"]
    process = cli.start("toy.py:Toy", *options, "--set", "epochs=8", "pause_s=0.3", "precision=fp32")
    wait_for(cli.folder / "runs" / "lossy" / "study.journal", "report/2", seconds=120)
    found.remove_node(nodes[1], allow_graceful=False)
    out, err = process.communicate(timeout=240)
    assert out, err
    assert json.loads(out)["outcomes"] == {"completed": 3}, err
    assert "and goes on from its last checkpoint" in err
    assert "1 of the gangs wait for room: 1 x 1 CPU each" in err


def test_stopped_trials_leave_no_placement_group_behind_beside_another_ray_and_without_a_dashboard(cluster):
    """Train's own cleaner needs the dashboard, and dies where several instances of Ray share a machine."""
    other, _, _ = cluster(nodes=0)
    found, _, cli = cluster(nodes=2)
    assert other.address != found.address
    options = ["--trials", "9", "--name", "beside", "--json", "--resource", "slot=2", "--set", "precision=fp32"]
    done = cli.run("toy.py:Toy", *options, timeout=150)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["outcomes"]) == {"completed", "pruned"}
    assert "2 at a time: 1 x 1 CPU + 2 slot each" in done.stderr
    ray.init(address=found.address, log_to_driver=False, logging_level="ERROR")
    deadline = time.monotonic() + 20
    while ray.available_resources().get("CPU") != 2.0:
        assert time.monotonic() < deadline, placement_group_table()
        time.sleep(0.2)
    assert {row["state"] for row in placement_group_table().values()} == {"REMOVED"}


def test_while_ray_shuts_down_no_thread_collects_garbage_that_may_hold_references_to_it(monkeypatch):
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
