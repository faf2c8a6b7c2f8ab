from types import SimpleNamespace

import pytest
import torch

from searchlight.search.config import load_config
from searchlight.search.errors import UsageError
from searchlight.search.execution.cluster import resources
from searchlight.search.execution.cluster.resources import (
    CapacityMonitor,
    max_gangs,
    num_gangs,
    resolve_worker_resources,
)
from searchlight.search.experiment import plan
from searchlight.trainables import precision
from searchlight.trainables.precision import Precision

GIB = 2.0**30


def planned(tmp_path, **given):
    return plan(load_config({"task": "arc", "storage": str(tmp_path / "runs"), **given}))


def node(cpus, memory_gib=64, **others):
    return {"CPU": float(cpus), "memory": memory_gib * GIB, **others}


@pytest.fixture
def configured(tmp_path):
    return lambda **given: load_config({"task": "arc", "storage": str(tmp_path), **given})


@pytest.fixture
def device_without_fp16(monkeypatch):
    """Stands in for a device that says no to fp16, which no CPU does."""
    real = precision._is_supported
    monkeypatch.setattr(
        precision,
        "_is_supported",
        lambda mode, device: mode is not Precision.FP16 and real(mode, device),
    )


@pytest.mark.parametrize(
    "given", [{"try": [{"precision": "fp16"}]}, {"set": {"precision": "fp16"}}, {"search": {"precision": "bf16,fp16"}}]
)
def test_unsupported_precision_is_refused(tmp_path, device_without_fp16, given):
    with pytest.raises(UsageError) as caught:
        planned(tmp_path, **given)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert caught.value.problems == (
        f"precision must be one that {device} supports, but got fp16. "
        "Use --search precision=fp32,bf16 or --set precision=fp32.",
    )
    assert not (tmp_path / "runs").exists()
    assert planned(tmp_path, search={"precision": "fp32,bf16"}).schedule.rungs == (1, 3, 9)


def test_seed_and_single_run_are_planned(tmp_path):
    assert planned(tmp_path, seed="7").space.build_config({}).seed == 7
    assert planned(tmp_path, seed="7", set={"seed": "3"}).space.build_config({}).seed == 3
    single = planned(tmp_path, task="liquid", once=True)
    assert (single.space.parameters, len(single.schedule.rungs), single.trials) == ((), 1, 1)


LIQUID = {"task": "liquid", "set": {"epochs": "30"}}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {},
            "rungs, in turn: 9 trials at 1,3,9; 5 trials at 3,9; 3 trials at 9 epochs",
        ),
        ({"scheduler": "asha"}, "rungs: 1, 3, 9 epochs"),
        ({"max_fidelity": "100", "scheduler": "none"}, "rungs: 9 epochs"),
        (
            {"scheduler": "hyperband", "grace_period": "3"},
            "rungs, in turn: 3 trials at 3,9; 2 trials at 9 epochs",
        ),
        ({"scheduler": "asha-stop"}, "rungs: 1, 3, 9 epochs, where a trial continues or ends at once"),
        ({"scheduler": "asha", "fidelity": "gpu-seconds", "max_fidelity": "10m"}, "rungs: 67, 200, 600 GPU-seconds"),
        (
            {"scheduler": "asha", "fidelity": "gpu-seconds", "max_fidelity": "9", "grace_period": "0.5"}
            | {"reduction_factor": "4"},
            "rungs: 0.56, 2.2, 9 GPU-seconds",
        ),
        (
            {"scheduler": "asha", "fidelity": "samples", "max_fidelity": "9e5", "search": {"epochs": "2..9"}},
            "rungs: 100000, 300000, 900000 samples",
        ),
        ({"fidelity": "samples", "max_fidelity": "3e9", "scheduler": "none"}, "rungs: 3000000000 samples"),
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
        (
            {"scheduler": "pbt", "task": "liquid"},  # of whose five tasks the first says nothing of what is forgotten
            "a population of 20, compared after each epoch from epoch 6 on: copies of the best 5 replace the worst 5",
        ),
        (LIQUID, "rungs: 30 epochs"),
        ({**LIQUID, "scheduler": "asha", "reduction_factor": "2"}, "rungs: 15, 30 epochs"),
        ({**LIQUID, "scheduler": "asha", "grace_period": "3"}, "rungs: 3, 10, 30 epochs"),
        (
            {"task": "liquid", "scheduler": "asha", "set": {"epochs": "30", "continual.tasks": "1"}},
            "rungs: 1, 3, 10, 30 epochs",
        ),
    ],
)
def test_requested_scheduler_is_planned(tmp_path, given, told):
    assert str(planned(tmp_path, **given).schedule) == told


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"scheduler": name, "search": {"epochs": "2..9"}}, "--search epochs must come with --scheduler none")
        for name in ("asha", "hyperband", "median", "pbt")
    ]
    + [
        ({"scheduler": "pbt", **given}, line)
        for given, line in [
            ({"exploit_every": "9"}, "--exploit-every must be below the epochs of a trial, 9, but got 9"),
            ({"set": {"epochs": 1}}, "--exploit-every must be below the epochs of a trial, 1, but got 1"),
            ({"population": "17"}, "--population must be at most --trials, 16, but got 17"),
            ({"task": "liquid", "set": {"continual.tasks": "2"}}, "no member would be compared"),
        ]
    ],
)
def test_scheduler_that_could_not_compare_is_refused(tmp_path, given, line):
    with pytest.raises(UsageError, match=line):
        planned(tmp_path, **given)


@pytest.mark.parametrize(("given", "expected"), [("2..27", 27), ("3,81", 81)])
def test_searched_length_sets_the_limit(tmp_path, given, expected):
    found = planned(tmp_path, scheduler="none", search={"epochs": given})
    assert found.schedule.limit == expected
    assert found.expected_cost is None, "nobody knows what will be suggested"
    assert planned(tmp_path, scheduler="none", trials="4").expected_cost == 36


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
def test_as_many_gangs_run_as_the_cluster_holds(configured, given, cluster, gangs):
    config = configured(**given)
    assert num_gangs(config, config.trials, resolve_worker_resources(config, cluster), cluster) == gangs


def test_growing_cluster_counts_as_what_it_may_grow_to(configured):
    config = configured(gpus_per_worker="1", trials="100")
    grown = {"CPU": 260.0, "GPU": 32.0}
    assert num_gangs(config, config.trials, resolve_worker_resources(config, [node(4)], grown), [node(4)], grown) == 32
    assert num_gangs(configured(concurrency="8"), 16, {"CPU": 1.0}, [node(2)], {"CPU": 4.0}) == 8
    for growing, gpus in ((None, None), ({"CPU": 64.0}, None), (grown, 1.0)):
        assert resolve_worker_resources(configured(), [node(4)], growing).get("GPU") == gpus


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
def test_gangs_that_do_not_fit_into_the_cluster_are_refused(configured, given, cluster):
    config = configured(**given)
    with pytest.raises(UsageError, match=r"must fit into the cluster, but its nodes have \{'CPU': \d\.0"):
        num_gangs(config, config.trials, resolve_worker_resources(config, cluster), cluster)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"gpus_per_worker": "1.5"}, "--gpus-per-worker must be whole above 1, but got 1.5"),
        ({"gpus_per_worker": "0.5", "workers": "2"}, "--gpus-per-worker must be whole with --workers 2, but got 0.5"),
        ({"resources": {"GPU": "1"}}, "--resource must name a custom resource, but got GPU"),
        ({"resources": {"fpga": "0"}}, "--resources.fpga must"),
    ],
)
def test_impossible_resources_of_a_worker_are_refused(configured, given, told):
    with pytest.raises(UsageError) as refused:
        configured(**given)
    assert refused.value.problems[0].startswith(told)


@pytest.mark.parametrize(
    ("given", "trials", "population"),
    [
        ({"task": "liquid"}, 96, 20),
        ({"task": "liquid", "trials": "10"}, 10, 5),
        ({"task": "liquid", "population": "40"}, 96, 40),
        ({}, 16, 8),
    ],
)
def test_task_sets_trials_and_population(tmp_path, given, trials, population):
    found = planned(tmp_path, scheduler="pbt", **given)
    assert (found.trials, found.config.population) == (trials, population)


@pytest.mark.parametrize(
    ("concurrency", "fit", "grows", "gangs"),
    [(None, 3, False, 3), (None, 0, False, 1), (2, 3, False, 2), (4, 3, False, 3), (4, 0, False, 1), (8, 3, True, 8)],
)
def test_at_least_one_gang_may_run(concurrency, fit, grows, gangs):
    assert max_gangs(concurrency, fit, grows) == gangs


@pytest.mark.parametrize(
    ("given", "limits", "clusters", "said", "told"),
    [
        (
            {"workers": "2"},
            None,
            [[node(2)] * 2, [node(2)] * 3, [node(2)] * 3, [node(2)] * 9, [node(2)] * 8, [node(2)], [], [node(4)]],
            ["a node joined: 3 trials", "6 nodes joined: 5 trials", "7 nodes left: 1 trial", "a node joined: 2 trials"],
            [2, 3, 3, 9, 8, 1, 1, 2],
        ),
        ({"concurrency": "4"}, {"CPU": 2.0}, [[]], [], [4]),  # none of them is taken for one too many
    ],
    ids=["nodes come and go", "user allows more than the cluster"],
)
def test_monitor_tells_how_many_gangs_may_run(configured, monkeypatch, given, limits, clusters, said, told):
    lines, capacities = [], []
    registry = SimpleNamespace(set_capacity=SimpleNamespace(remote=capacities.append))
    monitor = CapacityMonitor(configured(**given), 5, {"CPU": 1.0}, registry, lines.append)
    monkeypatch.setattr(resources, "autoscaler_limits", lambda: limits)
    for cluster in clusters:
        monkeypatch.setattr(resources, "get_node_resources", lambda cluster=cluster: cluster)
        monitor.update()
    assert lines == [f"{line} at a time" for line in said]
    assert capacities == told
    assert monitor.gangs == min(5, told[-1])


def test_monitor_follows_commands_that_change_concurrency(configured, monkeypatch):
    registry = SimpleNamespace(set_capacity=SimpleNamespace(remote=lambda gangs: None))
    monitor = CapacityMonitor(configured(concurrency="2"), 9, {"CPU": 1.0}, registry, lambda line: None)
    monkeypatch.setattr(resources, "autoscaler_limits", lambda: None)
    monkeypatch.setattr(resources, "get_node_resources", lambda: [node(4)])
    found = []
    for trials, concurrency in ((9, None), (9, 1), (9, 8), (3, 8), (9, None)):
        monitor.set_limits(trials, concurrency)
        monitor.update()
        found.append(monitor.gangs)
    assert found == [2, 1, 4, 3, 2]
    assert monitor.fit == 4
