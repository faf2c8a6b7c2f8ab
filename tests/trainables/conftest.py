"""What every test of the trainables runs under."""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from ray.train.v2._internal.execution.train_fn_utils import LocalTrainFnUtils

from searchlight.trainables.ray_functions import set_ray_functions
from searchlight.trainables.worker.messages import SegmentAssignment
from tests.trainables.two_ranks import Pair
from tests.trainables.worker import train_functions
from tests.trainables.worker.command_project import Project
from tests.trainables.worker.local_worker import stretch_in


@pytest.fixture(autouse=True)
def _few_threads_and_a_fixed_seed() -> Iterator[None]:
    """Models are tiny: threads cost more than they save."""
    threads = torch.get_num_threads()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def skip_but_on_cpu(device: torch.device) -> None:
    if device.type != "cpu":
        pytest.skip("several ranks of tests share no GPU: they use gloo")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory, device: torch.device) -> Iterator[Pair]:
    """Two ranks, started once for all tests that need them."""
    skip_but_on_cpu(device)
    pair = Pair(tmp_path_factory.mktemp("pair"))
    yield pair
    pair.end()


@pytest.fixture(scope="session")
def four(tmp_path_factory: pytest.TempPathFactory, device: torch.device) -> Iterator[Pair]:
    """Four ranks, started once as well."""
    skip_but_on_cpu(device)
    four = Pair(tmp_path_factory.mktemp("four"), 4)
    yield four
    four.end()


@pytest.fixture
def alone() -> Iterator[None]:
    yield
    assert not torch.distributed.is_initialized(), "a trial must end the process group that it made"


@pytest.fixture
def stretch(tmp_path: Path) -> Callable[..., SegmentAssignment]:
    """Makes segments of trials that write into the test's folder."""
    return partial(stretch_in, tmp_path)


@pytest.fixture
def as_in_a_worker(tmp_path: Path) -> Iterator[None]:
    """Ray's own utilities of a worker, those of its local mode; the functions tell no earlier test's tales."""
    set_ray_functions(LocalTrainFnUtils("test"))
    train_functions.SCRATCH[0] = str(tmp_path)
    train_functions.SEEN.clear()
    yield
    set_ray_functions(None)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)
