"""The coordinate check: which layers grow with the size of a task."""

from collections import Counter

import pytest
import torch

from searchlight.trainables.context import Context
from searchlight.trainables.preflight import coordinates
from searchlight.trainables.preflight.coordinates import SEEDS, UPDATES, check_coordinates
from searchlight.trainables.task import Task, TaskConfig

WIDTHS = (16, 64, 256)


class WideConfig(TaskConfig):
    width: int = 16
    lr: float = 0.03
    mup: bool = False
    fails: bool = False


class Wide(Task[WideConfig]):
    """A network of two layers whose sums grow with its width under Adam, unless the rates fall with it."""

    objective = "val/loss"

    def build(self):
        width, generator = self.config.width, torch.Generator().manual_seed(self.config.seed)
        if self.config.fails and width > 16:
            raise RuntimeError("too wide")
        self.x = torch.randn(64, 4, generator=generator)
        shapes = ((4, width), (width, width), (width, 1))
        first, hidden, last = (torch.nn.Linear(*shape, bias=False) for shape in shapes)
        self.modules = {"net": torch.nn.Sequential(first, torch.nn.Tanh(), hidden, torch.nn.Tanh(), last)}
        if self.config.mup:
            torch.nn.init.zeros_(last.weight)
        rate = self.config.lr * (16 / width if self.config.mup else 1.0)
        groups = [{"params": first.parameters(), "lr": self.config.lr}, {"params": [hidden.weight, last.weight]}]
        self.optimizers = {"adam": torch.optim.Adam(groups, lr=rate)}

    def train_batches(self, epoch):
        yield from self.x.split(16)

    def loss(self, x):
        return (self.modules["net"](x)[:, 0] - x[:, 0]).square().mean(), len(x)

    def evaluate(self):
        return {"val/loss": 1.0}


def check(**config):
    sizes = [(width, WideConfig(width=width, **config).model_dump(mode="json")) for width in WIDTHS]
    return check_coordinates(lambda: Wide, sizes, Context("cpu"))


def test_layer_that_grows_is_named():
    found = check()
    grown = {finding.subject for finding in found if finding.name == "grows-with-size"}
    assert "net.2" in grown
    assert "net.0" not in grown, "its inputs have the same size at each width"
    assert "exponent" in found[0].figure


def test_rates_that_fall_with_the_width_keep_the_activations():
    found = check(mup=True)
    assert "grows-with-size" not in {finding.name for finding in found}
    assert found[-1].name == "keeps-its-size"


def test_growth_beyond_those_that_are_listed_is_not_denied(monkeypatch):
    monkeypatch.setattr(coordinates, "MOST", 0)
    assert check() == []


@pytest.mark.parametrize("batch", [16, 32, 64])
def test_as_many_updates_as_told_are_measured_whatever_the_length_of_an_epoch(batch):
    losses = []

    class Short(Wide):
        def train_batches(self, epoch):
            yield from self.x.split(batch)

        def loss(self, x):
            losses.append(self.config.width)
            return super().loss(x)

    sizes = [(width, WideConfig(width=width).model_dump(mode="json")) for width in WIDTHS]
    found = check_coordinates(lambda: Short, sizes, Context("cpu"))
    assert Counter(losses) == dict.fromkeys(WIDTHS, SEEDS * (UPDATES + 1))
    assert "net.2" in {finding.subject for finding in found}


def test_size_that_cannot_be_trained_is_named():
    [finding] = check(fails=True)
    assert (finding.name, finding.subject) == ("not-audited", "size 64")
    assert "too wide" in finding.figure


def test_check_leaves_no_hook():
    built = []

    class Kept(Wide):
        def build(self):
            super().build()
            built.append(self.modules["net"])

    sizes = [(width, WideConfig(width=width).model_dump(mode="json")) for width in WIDTHS[:2]]
    check_coordinates(lambda: Kept, sizes, Context("cpu"))
    assert built
    assert not any(part._forward_hooks for module in built for part in module.modules())
