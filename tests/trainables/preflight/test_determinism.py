"""Show that an audit on a GPU, a simulated one, compares trials that compute by deterministic algorithms."""

from typing import Any, ClassVar

import pytest
import torch
from torch.nn import functional as F

from searchlight.trainables.context import Context
from searchlight.trainables.preflight.determinism import find_irreproducible
from searchlight.trainables.preflight.gradients import Prober
from searchlight.trainables.preflight.observation import ObservedTrial
from searchlight.trainables.preflight.shadow_device import shadow_cuda
from tests.trainables.preflight.faulty_data import Unseeded
from tests.trainables.preflight.faulty_tasks import Small, SmallConfig


class Asking(Small):
    """Notes the arithmetic of each loss."""

    seen: ClassVar[list[tuple[int, str]]] = []

    def loss(self, batch: Any) -> Any:
        self.seen.append((torch.get_deterministic_debug_mode(), torch.backends.cudnn.conv.fp32_precision))
        return super().loss(batch)


class Scattering(Unseeded):
    """An unseeded loss with an operation that has no deterministic algorithm."""

    def loss(self, batch: Any) -> Any:
        hidden = torch.zeros_like(batch[1])
        hidden.put_(torch.tensor([0], device=hidden.device), batch[1][:1, 0])
        return super().loss((batch[0], batch[1] + 0 * F.relu(hidden)))


@pytest.fixture
def context(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    with shadow_cuda():
        yield Context("cuda")


def test_trials_of_a_gpu_are_compared_with_deterministic_algorithms(context):
    Asking.seen.clear()
    assert not find_irreproducible(lambda: Asking, SmallConfig(), context, 2)
    assert {*Asking.seen} == {(1, "ieee")}
    assert torch.get_deterministic_debug_mode() == 0


def test_gradients_of_a_gpu_are_probed_without_tf32(context):
    trial = ObservedTrial(Asking, SmallConfig(), context, [])
    trial.train(1)
    Asking.seen.clear()
    ((batch, loss), *_) = trial.updates["train"].batches
    Prober(trial).compute("train", loss, batch)
    trial.close()
    assert Asking.seen == [(1, "ieee")]


def test_difference_names_operations_without_such_an_algorithm(context):
    (finding,) = find_irreproducible(lambda: Scattering, SmallConfig(), context, 2)
    assert finding.name == "not-reproducible"
    assert finding.figure.endswith("; no deterministic algorithm for put_")
