import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from searchlight.search.execution.cluster.snapshot import ClusterSnapshot, fullest_fitting_node

NEED = {"CPU": 1.0, "GPU": 1.0}


def looked(**free):
    """Nodes of eight CPUs and four GPUs, of which so many are left."""
    left = {node: {"CPU": cpus, "GPU": gpus} for node, (cpus, gpus) in free.items()}
    return ClusterSnapshot(total={node: {"CPU": 8.0, "GPU": 4.0} for node in free}, free=left)


@pytest.mark.parametrize(
    ("free", "need", "expected"),
    [
        ({"a": (8.0, 4.0), "b": (7.0, 3.0), "c": (4.0, 0.0)}, NEED, "b"),
        ({"a": (8.0, 4.0), "b": (0.0, 4.0)}, NEED, "a"),
        ({"b": (0.5, 4.0), "c": (8.0, 0.0)}, NEED, ""),
        ({}, NEED, ""),
        ({"a": (8.0, 4.0)}, {"fpga": 1.0}, ""),
    ],
)
def test_fullest_node_with_room_is_chosen(free, need, expected):
    assert fullest_fitting_node(looked(**free), need, {}) == expected


@settings(max_examples=50)
@given(st.dictionaries(st.sampled_from("abcde"), st.integers(0, 4), min_size=1), st.integers(1, 20))
def test_simultaneous_gangs_fill_one_node_after_the_other(gpus, gangs):
    nodes, taken = looked(**{node: (8.0, float(count)) for node, count in gpus.items()}), {}
    for _ in range(gangs):
        node = fullest_fitting_node(nodes, NEED, taken)
        if node:
            assert all(taken.get(other, 0) in (0, gpus[other]) for other in gpus if other != node)
            taken[node] = taken.get(node, 0) + 1
        else:
            assert taken == {name: count for name, count in gpus.items() if count}
