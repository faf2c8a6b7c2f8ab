from pathlib import Path

import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

CLUSTER = Path(__file__).resolve().parent.parent / "cluster.yaml"


def test_ray_accepts_the_cluster_config():
    config = prepare_config(yaml.safe_load(CLUSTER.read_text()))
    validate_config(config)


def test_the_head_offers_no_cpu_to_trials():
    config = yaml.safe_load(CLUSTER.read_text())
    assert config["available_node_types"][config["head_node_type"]]["resources"] == {"CPU": 0}
