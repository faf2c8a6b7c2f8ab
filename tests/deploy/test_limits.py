"""What a cluster may grow to is told by deploy/limits.py and read by the search."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
import ray
import yaml

from deploy.limits import node_types, report
from search.cluster import largest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head that offers no CPU, and the environment of a process that finds it."""
    token = tmp_path_factory.mktemp("ray") / "token"
    token.write_text(secrets.token_hex(32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_TOKEN_PATH", str(token))
        options = {"include_dashboard": False, "log_to_driver": False, "object_store_memory": 2**27}
        context = ray.init(address="local", num_cpus=0, **options)
        patch.setenv("RAY_ADDRESS", context.address_info["gcs_address"])
        yield dict(os.environ)
        ray.shutdown()


def test_a_search_learns_the_limits_of_a_cluster_that_has_no_gpu_node_yet(cluster, tmp_path):
    file = tmp_path / "ray_bootstrap_config.yaml"
    head = {"max_workers": 0, "resources": {"CPU": 0}}
    gpu = {"max_workers": 8, "resources": {"CPU": 8, "GPU": 1, "memory": 24 * 2**30}}
    file.write_text(yaml.safe_dump({"available_node_types": {"head": head, "gpu": gpu}}))
    report(node_types([str(file)]))
    assert largest() == {"CPU": 64.0, "GPU": 8.0, "memory": 8 * 24 * 2.0**30}


def test_machines_that_are_there_and_no_more_have_no_limits_to_tell(cluster, tmp_path):
    file = tmp_path / "ray_bootstrap_config.yaml"
    file.write_text("available_node_types: {local.cluster.node: {max_workers: 2, resources: {}}}")
    report(node_types([str(file)]))
    assert largest() is None


def test_it_becomes_the_command_that_follows(cluster):
    arguments = ["4", "CPU=8", "GPU=2", "--", "sh", "-c", "echo started; exit 3"]
    command = [sys.executable, "-m", "deploy.limits", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=cluster, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip().splitlines()[-1]) == (3, "started"), done.stderr
    assert largest() == {"CPU": 32.0, "GPU": 8.0}


@pytest.mark.parametrize("arguments", [[], ["8"], ["a", "b"], ["8", "CPU"]])
def test_what_it_takes_is_told(arguments):
    with pytest.raises((SystemExit, FileNotFoundError), match=r"Usage|No such file"):
        node_types(arguments)
