"""Show that a trial on a GPU, a simulated one, keeps its state there."""

from typing import Any

import pytest
import torch
from torch import nn

from searchlight.trainables import checkpoint
from searchlight.trainables.context import Context
from searchlight.trainables.preflight.shadow_device import shadow_cuda
from searchlight.trainables.training.predictor import Predictor
from searchlight.trainables.training.trainer import TrialTrainer
from tests.trainables.toy_models import Regression

HERE = "tests.trainables.training.test_devices"


class Summed(Regression):
    """Its optimizer makes state before the modules are moved."""

    def build(self) -> None:
        super().build()
        self.schedulers = []
        self.optimizers = {"adam": torch.optim.Adagrad(self.modules["model"].parameters(), lr=self.config.lr)}


class Weighted(Regression):
    """Has a tensor and a generator of its own, and hands both to its checkpoints."""

    def build(self) -> None:
        super().build()
        self.mean = torch.zeros(3, device=self.context.device)
        self.noise = torch.Generator().manual_seed(5)

    def loss(self, batch: Any) -> Any:
        self.mean += 0.1 * (batch[0].mean(0) - self.mean)
        inputs = batch[0] - self.mean + torch.rand((), generator=self.noise)
        return super().loss((inputs, batch[1]))

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().predict(inputs - self.mean)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "own": [self.mean], "noise": self.noise.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        (self.mean,) = state["own"]
        self.noise.set_state(state["noise"])


def make_on_gpu(task: type[Any], **settings: Any) -> TrialTrainer:
    return TrialTrainer(task(task.config_class()(**settings), Context("cuda")))


@pytest.fixture(autouse=True)
def _gpu(_on_device):
    torch.set_default_device(None)  # also where other tests use a real GPU
    with shadow_cuda():
        yield


def test_optimizer_with_state_from_its_constructor_trains():
    training = make_on_gpu(Summed)
    training.run_epoch()
    state = training.task.optimizers["adam"].state
    assert {value["sum"].device.type for value in state.values()} == {"cuda"}
    assert training.task.updaters["train"].steps > 0


@pytest.mark.parametrize("of_another", [False, True], ids=["resumed", "copied"])
@pytest.mark.parametrize("midway", [False, True])
def test_tensors_of_a_task_are_on_the_gpu_again(tmp_path, midway, of_another):
    training = make_on_gpu(Weighted)
    training.run_epoch()
    if midway:
        assert training.run_epoch(lambda: training.windows >= 2) is None
    training.save(tmp_path / "saved.pt")
    again = make_on_gpu(Weighted, lr=0.02) if of_another else make_on_gpu(Weighted)
    again.restore(checkpoint.load(tmp_path / "saved.pt"), of_another=of_another)
    assert again.task.mean.device.type == "cuda"
    assert torch.equal(again.task.mean, training.task.mean)
    assert again.run_epoch() is not None


def test_predictor_moves_tensors_of_a_task_to_the_gpu(tmp_path):
    training = make_on_gpu(Weighted)
    training.run_epoch()
    training.save(tmp_path / "saved.pt")
    predictor = Predictor(f"{HERE}:Weighted", checkpoint.load(tmp_path / "saved.pt"), "cuda")
    predictor.save(tmp_path / "model.pt")
    loaded = Predictor.load(tmp_path / "model.pt", "cuda")
    assert loaded.task.mean.device.type == "cuda"
    assert torch.equal(
        torch.tensor(loaded(nn.init.ones_(torch.empty(4, 3)))), torch.tensor(predictor(torch.ones(4, 3)))
    )
