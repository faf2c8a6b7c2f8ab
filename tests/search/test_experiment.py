import pytest
import torch

import trainables.precision
from search.cluster import count_gangs
from search.config import load_config
from search.errors import UsageError
from search.experiment import plan
from trainables.precision import Precision


def planned(tmp_path, **given):
    return plan(load_config({"task": "arc", "storage": str(tmp_path / "runs"), **given}))


@pytest.fixture
def device_without_fp16(monkeypatch):
    """Stands in for a device that says no to fp16, which no CPU does."""
    real = trainables.precision._runs
    monkeypatch.setattr(
        trainables.precision, "_runs", lambda mode, device: mode is not Precision.FP16 and real(mode, device)
    )


@pytest.mark.parametrize("given", [{}, {"set": {"precision": "fp16"}}, {"search": {"precision": "bf16,fp16"}}])
def test_a_precision_that_the_device_lacks_is_refused_with_those_that_it_has(tmp_path, device_without_fp16, given):
    with pytest.raises(UsageError) as caught:
        planned(tmp_path, **given)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert caught.value.problems == (
        f"precision must be one that {device} supports, but got fp16. "
        "Say --search precision=fp32,bf16 or --set precision=fp32.",
    )
    assert not (tmp_path / "runs").exists()


def test_a_precision_that_the_device_has_is_planned(tmp_path, device_without_fp16):
    assert planned(tmp_path, search={"precision": "fp32,bf16"}).schedule.rungs == (1, 3, 9)


def test_the_seed_of_the_search_is_that_of_its_trials_unless_they_have_one(tmp_path):
    assert planned(tmp_path, seed="7").space.config({}).seed == 7
    assert planned(tmp_path, seed="7", set={"seed": "3"}).space.config({}).seed == 3


def test_one_run_searches_nothing(tmp_path):
    found = planned(tmp_path, once=True)
    assert found.space.parameters == ()
    assert found.schedule.rungs == (9,)


@pytest.mark.parametrize(
    ("given", "cluster", "gangs"),
    [
        ({}, {"CPU": 2.0}, 2),
        ({}, {"CPU": 64.0}, 16),  # no more than there are trials
        ({"workers": "2"}, {"CPU": 7.0}, 3),
        ({"concurrency": "1"}, {"CPU": 8.0}, 1),
        ({"workers": "4"}, {"CPU": 64.0, "GPU": 8.0}, 2),
    ],
)
def test_as_many_gangs_run_as_the_cluster_holds(tmp_path, given, cluster, gangs):
    worker = {"CPU": 1.0, **({"GPU": 1.0} if "GPU" in cluster else {})}
    config = load_config({"task": "arc", "storage": str(tmp_path), **given})
    assert count_gangs(config, worker, cluster) == gangs


@pytest.mark.parametrize(("given", "cluster"), [({"workers": "9"}, {"CPU": 8.0}), ({"concurrency": "3"}, {"CPU": 2.0})])
def test_gangs_that_do_not_fit_into_the_cluster_are_refused(tmp_path, given, cluster):
    config = load_config({"task": "arc", "storage": str(tmp_path), **given})
    with pytest.raises(UsageError, match=r"each must fit into the cluster, but it has \{'CPU': \d\.0\}"):
        count_gangs(config, {"CPU": 1.0}, cluster)
