from types import SimpleNamespace

import pytest

from search.config import load_config
from search.execution.cluster import capacity
from search.execution.cluster.capacity import CapacityMonitor, max_gangs


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
    monkeypatch.setattr(capacity, "get_node_resources", lambda: cluster)
    monkeypatch.setattr(capacity, "autoscaler_limits", lambda: None)
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
    monkeypatch.setattr(capacity, "get_node_resources", list)
    monkeypatch.setattr(capacity, "autoscaler_limits", lambda: {"CPU": 2.0})
    looking = CapacityMonitor(
        config, {"CPU": 1.0}, SimpleNamespace(set_capacity=SimpleNamespace(remote=told.append)), print
    )
    looking.update()
    assert looking.gangs == 4
    assert told == [4], "and none of them is taken for one too many"
