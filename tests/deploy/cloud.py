"""Starts AWS on loopback: EC2, IAM, S3 and CloudFormation as moto answers for them."""

import os
from contextlib import contextmanager
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

TEMPLATE = Path(__file__).resolve().parent.parent.parent / "deploy" / "aws.yaml"
SSH_FROM = "203.0.113.7/32"


@contextmanager
def aws(home):
    """An account in which deploy/aws.yaml was deployed, for all clients of this process; `home` is the user's."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in {
            "HOME": str(home),
            "AWS_ENDPOINT_URL": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-west-2",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }.items():
            patch.setenv(name, value)
        boto3.client("cloudformation").create_stack(
            StackName="searchlight",
            TemplateBody=TEMPLATE.read_text(),
            Parameters=[
                {"ParameterKey": "Bucket", "ParameterValue": "searches"},
                {"ParameterKey": "SshFrom", "ParameterValue": SSH_FROM},
            ],
            Capabilities=["CAPABILITY_NAMED_IAM"],
        )
        try:
            yield
        finally:
            server.stop()
