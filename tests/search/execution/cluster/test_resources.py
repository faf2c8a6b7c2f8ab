from types import SimpleNamespace

import pytest
import torch

import trainables.precision
from search.config import load_config
from search.errors import UsageError
from search.execution.cluster import resources
from search.execution.cluster.resources import CapacityMonitor, max_gangs, num_gangs, resolve_worker_resources
from search.experiment import plan
from trainables.precision import Precision


def planned(tmp_path, **given):
    return plan(load_config({"task": "arc", "storage": str(tmp_path / "runs"), **given}))


@pytest.fixture
def device_without_fp16(monkeypatch):
    """Stands in for a device that says no to fp16, which no CPU does."""
    real = trainables.precision._is_supported
    monkeypatch.setattr(
        trainables.precision, "_is_supported", lambda mode, device: mode is not Precision.FP16 and real(mode, device)
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
    assert planned(tmp_path, seed="7").space.build_config({}).seed == 7
    assert planned(tmp_path, seed="7", set={"seed": "3"}).space.build_config({}).seed == 3


def test_one_run_searches_nothing(tmp_path):
    found = planned(tmp_path, once=True)
    assert found.space.parameters == ()
    assert found.schedule.rungs == (9,)


def node(cpus, memory_gib=64, **others):
    return {"CPU": float(cpus), "memory": memory_gib * 2.0**30, **others}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "rungs: 1, 3, 9 epochs"),
        ({"scheduler": "none"}, "rungs: 9 epochs"),
        (
            {"scheduler": "hyperband", "grace_period": "3"},
            "rungs: 60% of the trials at 3,9; 40% of the trials at 9 epochs",
        ),
        ({"scheduler": "asha-stop"}, "rungs: 1, 3, 9 epochs, where a trial goes on or ends at once"),
        ({"fidelity": "gpu-seconds", "max_fidelity": "10m"}, "rungs: 67, 200, 600 GPU-seconds"),
        (
            {"fidelity": "gpu-seconds", "max_fidelity": "9", "grace_period": "0.5", "reduction_factor": "4"},
            "rungs: 0.56, 2.2, 9 GPU-seconds",
        ),
        (
            {"fidelity": "samples", "max_fidelity": "900000", "scheduler": "hyperband"},
            "rungs: 53% of the trials at 100000,300000,900000; 29% of the trials at 300000,900000; "
            "18% of the trials at 900000 samples",
        ),
        ({"fidelity": "samples", "max_fidelity": "3e9", "scheduler": "none"}, "rungs: 3000000000 samples"),
        ({"max_fidelity": "3"}, "rungs: 1, 3 epochs"),
        ({"max_fidelity": "100", "scheduler": "none"}, "rungs: 9 epochs"),
        ({"scheduler": "median"}, "ends a trial below the median of 3 others or more, after each epoch from 1 on"),
        (
            {"scheduler": "pbt"},
            "a population of 8, compared after each epoch: copies of the best 2 replace the worst 2",
        ),
        (
            {"scheduler": "pbt", "trials": "200", "set": {"epochs": 80}},
            "a population of 20, compared after every 10 epochs: copies of the best 5 replace the worst 5",
        ),
        (
            {"scheduler": "pbt", "trials": "2", "exploit_every": "4"},
            "a population of 2, compared after every 4 epochs: a copy of the best replaces the worst",
        ),
    ],
)
def test_the_scheduler_that_is_asked_for_is_planned(tmp_path, given, told):
    assert str(planned(tmp_path, **given).schedule) == told


@pytest.mark.parametrize("scheduler", ["asha", "hyperband", "median", "pbt"])
def test_how_long_a_trial_is_cannot_be_searched_by_a_scheduler_that_decides_on_it(tmp_path, scheduler):
    with pytest.raises(UsageError, match="--search epochs must come with --scheduler none"):
        planned(tmp_path, scheduler=scheduler, search={"epochs": "2..9"})


@pytest.mark.parametrize(("given", "expected"), [("2..27", 27), ("3,81", 81)])
def test_a_searched_length_may_be_as_long_as_the_longest(tmp_path, given, expected):
    found = planned(tmp_path, scheduler="none", search={"epochs": given})
    assert found.schedule.limit == expected
    assert found.expected_cost is None, "nobody knows what will be suggested"
    assert planned(tmp_path, scheduler="none", trials="4").expected_cost == 36


def test_lengths_may_be_searched_where_trials_are_measured_otherwise(tmp_path):
    found = planned(tmp_path, fidelity="samples", max_fidelity="9000", search={"epochs": "2..9"})
    assert found.schedule.rungs == pytest.approx((1000.0, 3000.0, 9000.0))


def test_a_population_whose_members_are_never_compared_is_refused(tmp_path):
    with pytest.raises(UsageError, match="--exploit-every must be below the epochs of a trial, 9, but got 9"):
        planned(tmp_path, scheduler="pbt", exploit_every="9")
    with pytest.raises(UsageError, match="--exploit-every must be below the epochs of a trial, 1, but got 1"):
        planned(tmp_path, scheduler="pbt", set={"epochs": 1})


@pytest.mark.parametrize(
    ("given", "cluster", "gangs"),
    [
        ({}, [node(2)], 2),
        ({}, [node(64)], 16),  # no more than there are trials
        ({"workers": "2"}, [node(7)], 3),
        ({"concurrency": "1"}, [node(8)], 1),
        ({"workers": "4"}, [node(64, GPU=8.0)], 2),
        ({"cpus_per_worker": "2"}, [node(3), node(3)], 2),  # a worker lies on one node: not three
        ({"workers": "2", "cpus_per_worker": "2"}, [node(3), node(3)], 1),  # a gang may span two
        ({}, [node(64, memory_gib=4)], 4),
        ({"gpus_per_worker": "0.5"}, [node(16, GPU=4.0)], 8),
        ({"gpus_per_worker": "0"}, [node(4, GPU=1.0)], 4),
        ({"resources": {"fpga": "2"}}, [node(16, fpga=4.0), node(16)], 2),
    ],
)
def test_as_many_gangs_run_as_the_cluster_holds(tmp_path, given, cluster, gangs):
    config = load_config({"task": "arc", "storage": str(tmp_path), **given})
    assert num_gangs(config, resolve_worker_resources(config, cluster), cluster) == gangs


def test_a_cluster_that_grows_holds_what_it_may_grow_to(tmp_path):
    config = load_config({"task": "arc", "storage": str(tmp_path), "gpus_per_worker": "1", "trials": "100"})
    head, grown = node(4), {"CPU": 260.0, "GPU": 32.0}
    assert num_gangs(config, resolve_worker_resources(config, [head]), [head], grown) == 32


def test_workers_get_gpus_where_there_are_none_yet_if_the_cluster_may_grow_to_some(tmp_path):
    config = load_config({"task": "arc", "storage": str(tmp_path)})
    assert "GPU" not in resolve_worker_resources(config, [node(4)])
    assert "GPU" not in resolve_worker_resources(config, [node(4)], {"CPU": 64.0})
    assert resolve_worker_resources(config, [node(4)], {"CPU": 64.0, "GPU": 8.0})["GPU"] == 1.0


def test_more_gangs_than_fit_now_may_be_asked_of_a_cluster_that_grows(tmp_path):
    config = load_config({"task": "arc", "storage": str(tmp_path), "concurrency": "8"})
    assert num_gangs(config, {"CPU": 1.0}, [node(2)], {"CPU": 4.0}) == 8


@pytest.mark.parametrize(
    ("given", "cluster"),
    [
        ({"workers": "9"}, [node(8)]),
        ({"concurrency": "3"}, [node(2)]),
        ({"concurrency": "3"}, [node(8, memory_gib=2)]),
        ({"resources": {"fpga": "1"}}, [node(8)]),
        ({"cpus_per_worker": "4"}, [node(3), node(3)]),
    ],
)
def test_gangs_that_do_not_fit_into_the_cluster_are_refused(tmp_path, given, cluster):
    config = load_config({"task": "arc", "storage": str(tmp_path), **given})
    with pytest.raises(UsageError, match=r"must fit into the cluster, but its nodes have \{'CPU': \d\.0"):
        num_gangs(config, resolve_worker_resources(config, cluster), cluster)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"gpus_per_worker": "1.5"}, "--gpus-per-worker must be whole above 1, but got 1.5"),
        ({"gpus_per_worker": "0.5", "workers": "2"}, "--gpus-per-worker must be whole with --workers 2, but got 0.5"),
        ({"resources": {"GPU": "1"}}, "--resource must name a custom resource, but got GPU"),
        ({"resources": {"fpga": "0"}}, "--resources.fpga must"),
    ],
)
def test_resources_that_no_worker_can_have_are_refused(tmp_path, given, told):
    with pytest.raises(UsageError) as refused:
        load_config({"task": "arc", "storage": str(tmp_path), **given})
    assert refused.value.problems[0].startswith(told)


@pytest.mark.parametrize(
    ("given", "rungs"),
    [
        ({"set": {"epochs": "30"}}, (30,)),
        ({"set": {"epochs": "30"}, "reduction_factor": "2"}, (15, 30)),
        ({"set": {"epochs": "30"}, "grace_period": "3"}, (3, 10, 30)),
        ({"set": {"epochs": "30", "continual.tasks": "1"}}, (1, 3, 10, 30)),
    ],
)
def test_a_trial_is_not_judged_before_its_task_says_that_it_can_be_unless_the_user_does(tmp_path, given, rungs):
    """Of five tasks, one after another, the first says nothing of what will be forgotten."""
    assert planned(tmp_path, task="liquid", **given).schedule.rungs == rungs


def test_a_task_says_how_many_trials_there_are_unless_the_user_does(tmp_path):
    assert planned(tmp_path, task="liquid").trials == 96
    assert planned(tmp_path, task="liquid", trials=3).trials == 3
    assert planned(tmp_path, task="liquid", once=True).trials == 1
    assert planned(tmp_path).trials == 16


def test_a_population_is_as_large_as_the_trials_of_its_task_allow(tmp_path):
    assert planned(tmp_path, task="liquid", scheduler="pbt").config.population == 20
    assert planned(tmp_path, task="liquid", scheduler="pbt", population="40").config.population == 40
    assert planned(tmp_path, task="liquid", scheduler="pbt", trials="10").config.population == 5
    assert planned(tmp_path, scheduler="pbt").config.population == 8
    with pytest.raises(UsageError, match="--population must be at most --trials, 16, but got 17"):
        planned(tmp_path, scheduler="pbt", population="17")


def test_a_population_is_not_compared_before_its_task_says_that_it_can_be(tmp_path):
    told = "a population of 20, compared after each epoch from epoch 6 on: copies of the best 5 replace the worst 5"
    assert str(planned(tmp_path, task="liquid", scheduler="pbt").schedule) == told
    with pytest.raises(UsageError, match="no member would be compared"):
        planned(tmp_path, task="liquid", scheduler="pbt", set={"continual.tasks": "2"})


@pytest.mark.parametrize(
    ("concurrency", "fit", "grows", "gangs"),
    [(None, 3, False, 3), (None, 0, False, 1), (2, 3, False, 2), (4, 3, False, 3), (4, 0, False, 1), (8, 3, True, 8)],
)
def test_as_many_gangs_may_run_as_fit_or_as_the_user_says_and_one_at_least(concurrency, fit, grows, gangs):
    assert max_gangs(concurrency, fit, grows) == gangs


def test_nodes_that_join_and_leave_are_told_of_where_they_change_how_many_gangs_run(tmp_path, monkeypatch):
    config = load_config({"task": "arc", "storage": str(tmp_path), "trials": "5", "workers": "2"})
    node = {"CPU": 2.0, "memory": 64 * 2.0**30}
    cluster, said, told = [node, node], [], []
    monkeypatch.setattr(resources, "get_node_resources", lambda: cluster)
    monkeypatch.setattr(resources, "autoscaler_limits", lambda: None)
    registry = SimpleNamespace(set_capacity=SimpleNamespace(remote=told.append))
    looking = CapacityMonitor(config, {"CPU": 1.0}, registry, said.append)
    looking.update()
    assert (looking.gangs, said) == (2, [])
    for now in ([node] * 3, [node] * 3, [node] * 9, [node] * 8, [node], [], [{**node, "CPU": 4.0}]):
        cluster[:] = now
        looking.update()
    assert said == ["a node joined: 3 at a time", "6 nodes joined: 5 at a time", "7 nodes left: 1 at a time",
                    "a node joined: 2 at a time"]  # fmt: skip
    assert told == [2, 3, 3, 9, 8, 1, 1, 2]


def test_more_gangs_than_a_cluster_is_known_to_grow_to_may_wait_if_the_user_says_so(tmp_path, monkeypatch):
    config = load_config({"task": "arc", "storage": str(tmp_path), "trials": "5", "concurrency": "4"})
    told = []
    monkeypatch.setattr(resources, "get_node_resources", list)
    monkeypatch.setattr(resources, "autoscaler_limits", lambda: {"CPU": 2.0})
    looking = CapacityMonitor(
        config, {"CPU": 1.0}, SimpleNamespace(set_capacity=SimpleNamespace(remote=told.append)), print
    )
    looking.update()
    assert looking.gangs == 4
    assert told == [4], "and none of them is taken for one too many"
