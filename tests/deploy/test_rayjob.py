"""Tests deploy/rayjob.yaml and its image as Ray's autoscaler, the search and Kubernetes read them."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr

import searchlight
from deploy.limits import node_types
from searchlight.search.execution.cluster.resources import GANG_BYTES
from searchlight.search.run import main

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "deploy" / "rayjob.yaml").read_text()
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text().replace("\\\n", " ")
LOCKED = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE))


@pytest.fixture(scope="module", params=["as it lies there", "with the lines for spot nodes"])
def job(request):
    spot = re.sub(r"^( +)#(?=\S|  )", r"\1", TEXT, flags=re.MULTILINE)
    return yaml.safe_load(TEXT if request.param == "as it lies there" else spot)


@pytest.fixture(scope="module")
def cluster(job):
    return job["spec"]["rayClusterSpec"]


@pytest.fixture(scope="module")
def kinds(cluster):
    """What Ray's autoscaler makes of the groups of pods."""
    resource = {"metadata": {"name": "searchlight", "namespace": "default"}, "spec": cluster}
    return _derive_autoscaling_config_from_ray_cr(resource)["available_node_types"]


def containers(cluster):
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [container for group in groups for container in group["template"]["spec"]["containers"]]


def entrypoint(job):
    """What tells the limits, and the command of the search."""
    words = shlex.split(job["spec"]["entrypoint"])
    at = words.index("--")
    return words[:at], words[at + 1 :]


def test_commented_lines_are_the_spot_nodes(job):
    commented = re.findall(r"^ +#(?! )\S.*", TEXT, flags=re.MULTILINE)
    assert [line.strip() for line in commented] == ["#affinity:", "#tolerations:"]
    pod = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    assert ("affinity" in pod) == ("tolerations" in pod)


def test_head_offers_no_cpu_and_gpu_pods_start_from_none(kinds):
    assert kinds["headgroup"]["resources"]["CPU"] == 0
    gpu = kinds["gpu"]
    assert (gpu["min_workers"], gpu["max_workers"]) == (0, 8)
    assert gpu["resources"]["GPU"] == 1
    assert all(kind["resources"]["memory"] >= 8 * GANG_BYTES for kind in kinds.values())


def test_search_is_told_the_limits_of_the_cluster(job, kinds):
    limits, _ = entrypoint(job)
    assert limits[:3] == ["python", "-m", "deploy.limits"]
    (told,) = node_types(limits[3:]).values()
    assert told["max_workers"] == kinds["gpu"]["max_workers"]
    assert told["resources"] == {name: kinds["gpu"]["resources"][name] for name in told["resources"]}
    assert {"CPU", "GPU"} <= set(told["resources"])


def test_entrypoint_is_a_command_of_the_search(job):
    _, (python, script, *options) = entrypoint(job)
    assert python == "python"
    folder = re.search(r"^WORKDIR (\S+)$", DOCKERFILE, flags=re.MULTILINE)[1]
    assert script == f"{folder}/search/run.py"
    given = main.make_context("run.py", options).params
    assert given["task"] == "arc"
    assert str(given["storage"]).startswith("s3:")  # the disk of the head goes with it
    assert given["name"]  # for --resume


def test_job_ends_once_with_a_token_and_the_locked_ray(job, cluster):
    spec = job["spec"]
    assert (spec["shutdownAfterJobFinishes"], spec["backoffLimit"]) == (True, 0)
    assert spec["ttlSecondsAfterFinished"] > 0
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["rayVersion"] == LOCKED["ray"]


def test_pods_have_one_image_of_this_version_and_no_privileges(cluster):
    (image,) = {container["image"] for container in containers(cluster)}
    assert image.endswith(f":{searchlight.__version__}")
    assert f"--tag {image} " in DOCKERFILE
    for group in [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]:
        assert group["template"]["spec"]["securityContext"]["runAsNonRoot"] is True
    assert all(container["securityContext"]["allowPrivilegeEscalation"] is False for container in containers(cluster))


def test_file_has_no_secret_and_workers_have_the_bucket_alone(cluster):
    head, worker = containers(cluster)
    values = [entry["name"] for entry in [*head.get("env", []), *worker.get("env", [])] if "value" in entry]
    assert set(values) == {"RAY_JOB_STOP_WAIT_TIME_S"}
    assert [source["secretRef"]["name"] for source in worker["envFrom"]] == ["searchlight-bucket"]
    assert [source["secretRef"]["name"] for source in head["envFrom"]] == ["searchlight", "searchlight-bucket"]


def test_image_has_what_it_copies_and_no_root():
    lines = [line.split() for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]
    sources = [source for word, *words in lines if word == "COPY" for source in words[:-1]]
    assert all((ROOT / source).exists() for source in sources)
    assert {"deploy", "models", "search", "searchlight", "trainables", "requirements.lock"} <= set(sources)
    assert lines[-1] == ["USER", "1000"]
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    python = re.search(r"^FROM python:3\.(\d+)-slim", DOCKERFILE, flags=re.MULTILINE)[1]
    assert int(python) >= int(needs.removeprefix(">=3."))
