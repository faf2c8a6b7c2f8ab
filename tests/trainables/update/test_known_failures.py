"""Test the failures that docs/development/training-step.md explains: of plain torch, what an update does instead."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from searchlight.trainables.precision import Diverged, LossScale
from searchlight.trainables.update import Updater
from tests.trainables.toy_models import epoch, samples, slope, slope_loss


def test_no_inf_checks_for_an_optimizer_without_gradients():  # E51, C32
    used, idle = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.ones(1))
    optimizers = {name: torch.optim.SGD([weight], lr=1.0) for name, weight in (("used", used), ("idle", idle))}
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale((used * 2).sum()).backward()
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizers["idle"])

    report = Updater(optimizers, "fp16").update([samples(2)], lambda x: ((used * x).sum(), 1))
    assert report.outcome == "applied"
    assert (used.item(), idle.item()) == (-2.0, 1.0)


def test_no_inf_checks_by_a_second_flush():  # C08
    scaler = torch.amp.GradScaler("cpu")
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale((weight * 2).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        scaler.update()

    weight, updater = slope(precision="fp16")
    updater.update([samples(2)], slope_loss(weight))
    assert updater.update([], slope_loss(weight)).outcome == "empty"
    assert weight.item() == -2.0


def test_fp16_parameters_fail_where_they_are_made():  # E54, C33
    model = nn.Linear(2, 1).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(1, 2, dtype=torch.half)).sum()).backward()
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.step(optimizer)

    with pytest.raises(ValueError, match=r"must be fp32, but got policy\.weight in float16, .* module\.float\(\)"):
        Updater({"sgd": optimizer}, "fp16", modules={"policy": model})


def test_two_updates_on_one_window_have_a_graph_each():  # C67
    torch.manual_seed(0)
    agent, policy = nn.Linear(2, 2), nn.Linear(2, 1)
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (agent, policy)]
    features = agent(torch.ones(3, 2))
    features.square().mean().backward()
    optimizers[0].step()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        policy(features).mean().backward()

    # Each update calls its own loss, which makes its own graph, and reaches its own parameters alone.
    updaters = [Updater({"sgd": optimizer}) for optimizer in optimizers]
    before = copy.deepcopy([agent.weight.detach(), policy.weight.detach()])
    updaters[0].update([torch.ones(3, 2)], lambda x: (agent(x).square().mean(), len(x)))
    between = agent.weight.detach().clone()
    updaters[1].update([torch.ones(3, 2)], lambda x: (policy(agent(x)).mean(), len(x)))
    assert not torch.equal(agent.weight, before[0])
    assert torch.equal(agent.weight, between)
    assert not torch.equal(policy.weight, before[1])
    assert agent.weight.grad is None


def test_tail_divided_by_the_full_length_is_too_small():  # A2, C02, C03
    weight = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    for index, x in enumerate(range(1, 10)):
        (weight * x / 4).sum().backward()
        if (index + 1) % 4 == 0 or index == 8:
            optimizer.step()
            optimizer.zero_grad()
    assert weight.item() == -11.25

    weight, updater = slope()
    epoch(weight, updater, (samples(x) for x in range(1, 10)), 4)
    assert weight.item() == -(2.5 + 6.5 + 9.0)


def test_clipping_makes_a_nan_of_an_infinity():  # matrix 31
    weight = nn.Parameter(torch.ones(2))
    weight.grad = samples(math.inf, 1.0)
    nn.utils.clip_grad_norm_([weight], 1.0)
    assert weight.grad.isnan().tolist() == [True, False]
    assert weight.grad[1] == 0  # and a zero of what was healthy

    updater = Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, max_grad_norm=1.0)
    report = updater.update([samples(math.inf, 1.0)], lambda x: ((weight * x).sum(), 1))
    assert (report.outcome, weight.tolist()) == ("skipped", [1.0, 1.0])


def test_loss_scale_without_a_floor_spoils_a_good_window():  # matrix 37, C38
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu")
    for x in [math.inf] * 144 + [1.0]:
        scaler.scale((weight * x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    assert not weight.isfinite().all()  # by the one window that was good: the reciprocal of its scale is infinite

    weight, updater = slope(precision="fp16", loss_scale=LossScale(), max_consecutive_skips=1000)

    def train() -> None:
        for _ in range(144):
            updater.update([samples(math.inf)], slope_loss(weight))

    with pytest.raises(Diverged, match=r"loss scale 6\.10352e-05 cannot be lowered"):
        train()
    assert (weight.item(), updater.skipped) == (0.0, 31)


def test_mean_of_means_is_not_the_mean_of_the_window():  # A3, C11
    weight = nn.Parameter(torch.zeros(1))
    micro_batches: list[Tensor] = [samples(1, 1, 1, 5), samples(9)]
    for x in micro_batches:
        ((weight * x).mean() / 2).backward()
    assert weight.grad is not None
    assert weight.grad.item() == 5.5

    weight, updater = slope()
    updater.update(micro_batches, slope_loss(weight))
    assert weight.item() == pytest.approx(-3.4)
