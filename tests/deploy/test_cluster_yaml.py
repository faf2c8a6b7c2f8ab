"""Tests cluster.yaml as Ray's launcher and its autoscaler read it for each of three providers."""

import re
from collections import Counter
from pathlib import Path

import boto3
import pytest
import yaml
from botocore.exceptions import ClientError
from ray.autoscaler._private.commands import _bootstrap_config
from ray.autoscaler._private.providers import _get_node_provider
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil

from tests.deploy.cloud import SSH_FROM, aws

ROOT = Path(__file__).resolve().parent.parent.parent
PROVIDERS = {"AWS": "external", "Google Cloud": "gcp", "Machines of your own": "local"}


def text_for(chosen):
    """The file after a user has taken the lines of one provider: the others are commented out."""
    head, *sections = re.split(r"^# ---- (.*) ----\n", (ROOT / "cluster.yaml").read_text(), flags=re.MULTILINE)
    titles, bodies = sections[::2], sections[1::2]
    assert [title.split(":")[0] for title in titles] == [*PROVIDERS, "Everywhere"]
    text = head
    for title, body in zip(titles, bodies, strict=True):
        if title == "Everywhere":
            text += body
        elif title.startswith(chosen):
            text += re.sub(r"^#", "", body, flags=re.MULTILINE) if chosen != "AWS" else body
    return text


def config_for(chosen):
    return yaml.safe_load(text_for(chosen))


@pytest.fixture(scope="module")
def account(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with aws(home):
        yield home


@pytest.fixture(scope="module")
def launched(account):
    """What `ray up --no-config-cache` makes of the file before it starts the head."""
    return _bootstrap_config(config_for("AWS"), no_config_cache=True)


@pytest.fixture
def ec2(launched):
    """Ray's node provider, and its launches before they are sent. Nodes that a test has launched go afterwards."""
    provider = _get_node_provider(launched["provider"], launched["cluster_name"], use_cache=False)
    events = provider.ec2_fail_fast.meta.client.meta.events  # of a client that all providers of the process share
    launches = Launches()
    events.register("before-parameter-build.ec2.RunInstances", launches, unique_id="launches")
    yield provider, launches
    events.unregister("before-parameter-build.ec2.RunInstances", unique_id="launches")
    provider.terminate_nodes(provider.non_terminated_nodes({}))


class Launches:
    """EC2 with room for so many spot nodes, after which it refuses them; unlike moto it gives more than the minimum."""

    def __init__(self):
        self.spot = 100
        self.refusal = "InsufficientInstanceCapacity"
        self.asked = []

    def __call__(self, params, **_):
        self.asked.append(dict(params))
        if "InstanceMarketOptions" in params:
            if self.spot == 0:
                raise ClientError({"Error": {"Code": self.refusal, "Message": "as told"}}, "RunInstances")
            params["MaxCount"] = min(params["MaxCount"], self.spot)
            self.spot -= params["MaxCount"]
        params["MinCount"] = params["MaxCount"]


def instances():
    pages = boto3.client("ec2").describe_instances()["Reservations"]
    return [node for page in pages for node in page["Instances"] if node["State"]["Name"] == "running"]


@pytest.mark.parametrize("chosen", PROVIDERS)
def test_ray_accepts_the_lines_of_each_provider(chosen):
    config = prepare_config(config_for(chosen))
    validate_config(config)
    assert config["provider"]["type"] == PROVIDERS[chosen]
    assert (yaml.safe_load((ROOT / "cluster.yaml").read_text()) == config_for(chosen)) == (chosen == "AWS")


@pytest.mark.parametrize("chosen", ["AWS", "Google Cloud"])
def test_head_offers_no_cpu_and_gpu_nodes_come_and_go(chosen):
    config = config_for(chosen)
    types = config["available_node_types"]
    assert types[config["head_node_type"]]["resources"] == {"CPU": 0}
    assert types[config["head_node_type"]]["max_workers"] == 0
    assert types["gpu"]["min_workers"] == 0
    assert types["gpu"]["max_workers"] == config["max_workers"]
    assert 0 < config["idle_timeout_minutes"] <= 10


def test_every_node_authenticates_with_a_local_dashboard():
    config = config_for("AWS")
    starts = [*config["head_start_ray_commands"], *config["worker_start_ray_commands"]]
    head, limits, worker, preemption = [command for command in starts if command != "ray stop"]
    assert all("RAY_AUTH_MODE=token" in command for command in (head, limits, worker, preemption))
    assert limits.endswith(re.search(r"--autoscaling-config=(\S+)", head)[1])
    assert "--dashboard-host=127.0.0.1" in head
    assert config["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    assert int(re.search(r"RAY_JOB_STOP_WAIT_TIME_S=(\d+)", head)[1]) >= 30


def test_files_sent_to_the_nodes_exist_and_are_small():
    config = config_for("AWS")
    local = [path for path in config["file_mounts"].values() if not path.startswith("~")]
    assert local
    files = [file for path in local for file in [ROOT / path, *(ROOT / path).rglob("*")] if file.is_file()]
    sent = [file for file in files if not set(file.parts) & set(config["rsync_exclude"])]
    assert ROOT / "requirements.lock" in sent
    assert "boto3==" in (ROOT / "requirements.lock").read_text()  # with which the head starts nodes
    assert sum(file.stat().st_size for file in sent) < 100_000


@pytest.mark.slow
def test_nodes_are_reached_by_each_other_and_by_ssh(launched):
    kinds = launched["available_node_types"].values()
    groups = {group for kind in kinds for group in kind["node_config"]["SecurityGroupIds"]}
    (group,) = boto3.client("ec2").describe_security_groups(GroupIds=list(groups))["SecurityGroups"]
    inside = [rule for rule in group["IpPermissions"] if rule["UserIdGroupPairs"]]
    (outside,) = [rule for rule in group["IpPermissions"] if rule["IpRanges"] or rule["Ipv6Ranges"]]
    assert [pair["GroupId"] for rule in inside for pair in rule["UserIdGroupPairs"]] == [group["GroupId"]]
    assert (outside["FromPort"], outside["ToPort"], outside["IpRanges"]) == (22, 22, [{"CidrIp": SSH_FROM}])
    assert len(inside) + 1 == len(group["IpPermissions"])


@pytest.mark.slow
def test_ray_knows_the_nodes_and_logs_in_with_its_own_key(account, launched):
    gpu = launched["available_node_types"]["gpu"]
    assert (gpu["resources"]["CPU"], gpu["resources"]["GPU"]) == (8, 1)
    assert gpu["resources"]["memory"] > 2**30  # of a gang beside its workers
    assert len(gpu["node_config"]["SubnetIds"]) > 1  # several zones to try
    key = Path(launched["auth"]["ssh_private_key"])
    assert key.is_relative_to(account)
    assert key.stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_workers_may_use_the_bucket_and_the_head_start_workers(account):
    iam = boto3.client("iam")

    def actions(node):
        profile = types[node]["node_config"]["IamInstanceProfile"]["Name"]
        (role,) = iam.get_instance_profile(InstanceProfileName=profile)["InstanceProfile"]["Roles"]
        found = set()
        for policy in iam.list_attached_role_policies(RoleName=role["RoleName"])["AttachedPolicies"]:
            arn = policy["PolicyArn"]
            version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
            document = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
            for statement in document["Statement"]:
                found |= {statement["Action"]} if isinstance(statement["Action"], str) else set(statement["Action"])
        return found

    types = config_for("AWS")["available_node_types"]
    assert {"s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"} <= actions("gpu")
    assert not any(action.startswith(("ec2:", "iam:")) for action in actions("gpu"))
    assert actions("gpu") | {"ec2:RunInstances", "ec2:TerminateInstances", "iam:PassRole"} <= actions("head")


@pytest.mark.slow
def test_waiting_trials_bring_gpu_nodes_up_to_the_limit(launched):
    kept = {name: value for name, value in launched.items() if name != "head_node"}
    autoscaling = AutoscalingConfig(kept, skip_content_hash=True)

    def nodes_for(workers):
        wanted = [ResourceRequestUtil.make({"CPU": 1, "GPU": 1})] * workers
        request = SchedulingRequest(
            disable_launch_config_check=True,
            node_type_configs=autoscaling.get_node_type_configs(),
            max_num_nodes=autoscaling.get_max_num_nodes(),
            resource_requests=ResourceRequestUtil.group_by_count(wanted),
        )
        launches = ResourceDemandScheduler(None).schedule(request).to_launch
        return Counter({launch.instance_type: launch.count for launch in launches})

    assert nodes_for(3) == {"gpu": 3}
    assert nodes_for(20) == {"gpu": 8}
    assert autoscaling.get_idle_timeout_s() == 300


@pytest.mark.slow
def test_gpu_nodes_are_spot_nodes_with_role_and_token(launched, ec2):
    provider, launches = ec2
    provider.create_node(launched["available_node_types"]["gpu"]["node_config"], {}, 2)
    assert [node["InstanceLifecycle"] for node in instances()] == ["spot", "spot"]
    (asked,) = launches.asked
    assert asked["IamInstanceProfile"] == {"Name": "searchlight-worker"}
    assert asked["MetadataOptions"] == {"HttpTokens": "required"}


@pytest.mark.slow
@pytest.mark.parametrize("spot", [0, 1])
def test_nodes_beyond_spot_are_launched_on_demand(launched, ec2, spot):
    provider, launches = ec2
    launches.spot = spot
    created = provider.create_node(launched["available_node_types"]["gpu"]["node_config"], {}, 3)
    nodes = instances()
    assert set(created) == {node["InstanceId"] for node in nodes}
    found = Counter(node.get("InstanceLifecycle", "on demand") for node in nodes)
    assert found == Counter({"spot": spot, "on demand": 3 - spot})
    assert {node["InstanceType"] for node in nodes} == {"g6.2xlarge"}


@pytest.mark.slow
def test_refused_launch_is_not_tried_on_demand(launched, ec2):
    provider, launches = ec2
    launches.spot, launches.refusal = 0, "UnauthorizedOperation"
    with pytest.raises(NodeLaunchException, match="UnauthorizedOperation"):
        provider.create_node(launched["available_node_types"]["gpu"]["node_config"], {}, 1)
    assert instances() == []
