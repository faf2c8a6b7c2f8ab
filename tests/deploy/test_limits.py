import pytest
import yaml

from deploy.limits import node_types


@pytest.mark.slow
def test_search_learns_the_limits_of_a_cluster(head, tmp_path):
    file = tmp_path / "ray_bootstrap_config.yaml"
    file.write_text("available_node_types: {local.cluster.node: {max_workers: 2, resources: {}}}")
    done = head.run("deploy.limits", str(file))
    assert done.returncode == 0, done.stderr
    assert head.sees("largest") is None, "machines that are there and no more"
    gpu = {"max_workers": 8, "resources": {"CPU": 8, "GPU": 1, "memory": 24 * 2**30}}
    kinds = {"head": {"max_workers": 0, "resources": {"CPU": 0}}, "gpu": gpu}
    file.write_text(yaml.safe_dump({"available_node_types": kinds}))
    done = head.run("deploy.limits", str(file))
    assert done.returncode == 0, done.stderr
    assert head.sees("largest") == {"CPU": 64.0, "GPU": 8.0, "memory": 8 * 24 * 2.0**30}
    done = head.run("deploy.limits", "4", "CPU=8", "GPU=2", "--", "sh", "-c", "echo started; exit 3")
    assert (done.returncode, done.stdout.strip().splitlines()[-1]) == (3, "started"), done.stderr
    assert head.sees("largest") == {"CPU": 32.0, "GPU": 8.0}


@pytest.mark.parametrize("arguments", [[], ["8"], ["a", "b"], ["8", "CPU"], ["8", "GPU=0.5"], ["8", "=1"]])
def test_wrong_arguments_are_refused_with_the_usage(arguments):
    with pytest.raises((SystemExit, FileNotFoundError), match=r"Usage|No such file"):
        node_types(arguments)
