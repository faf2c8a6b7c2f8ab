"""What a cluster may grow to is told by deploy/limits.py and read by the search."""

import pytest
import yaml

from deploy.limits import node_types


def test_a_search_learns_the_limits_of_a_cluster_that_has_no_gpu_node_yet(head, tmp_path):
    file = tmp_path / "ray_bootstrap_config.yaml"
    gpu = {"max_workers": 8, "resources": {"CPU": 8, "GPU": 1, "memory": 24 * 2**30}}
    kinds = {"head": {"max_workers": 0, "resources": {"CPU": 0}}, "gpu": gpu}
    file.write_text(yaml.safe_dump({"available_node_types": kinds}))
    done = head.run("deploy.limits", str(file))
    assert done.returncode == 0, done.stderr
    assert head.sees("largest") == {"CPU": 64.0, "GPU": 8.0, "memory": 8 * 24 * 2.0**30}


def test_machines_that_are_there_and_no_more_have_no_limits_to_tell(head, tmp_path):
    file = tmp_path / "ray_bootstrap_config.yaml"
    file.write_text("available_node_types: {local.cluster.node: {max_workers: 2, resources: {}}}")
    done = head.run("deploy.limits", str(file))
    assert done.returncode == 0, done.stderr
    assert head.sees("largest") is None


def test_it_becomes_the_command_that_follows(head):
    done = head.run("deploy.limits", "4", "CPU=8", "GPU=2", "--", "sh", "-c", "echo started; exit 3")
    assert (done.returncode, done.stdout.strip().splitlines()[-1]) == (3, "started"), done.stderr
    assert head.sees("largest") == {"CPU": 32.0, "GPU": 8.0}


@pytest.mark.parametrize("arguments", [[], ["8"], ["a", "b"], ["8", "CPU"], ["8", "GPU=0.5"], ["8", "=1"]])
def test_what_it_takes_is_told(arguments):
    with pytest.raises((SystemExit, FileNotFoundError), match=r"Usage|No such file"):
        node_types(arguments)
