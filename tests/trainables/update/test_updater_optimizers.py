"""One update over several optimizers, and which of them it takes."""

import copy
import math

import pytest
import torch
from torch import nn

from tests.trainables.toy_models import (
    TOLERANCE,
    classifier,
    distance,
    every_precision,
    identical,
    norm,
    recorded_gradients,
    samples,
    slope,
    token_loss,
    tokens,
)
from trainables.precision import LossScale
from trainables.update import Updater

# Several optimizers


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_three_optimizers_under_one_loss_scale_train_as_in_fp32(precision):  # E49
    results = []
    for mode in ("fp32", precision):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizers = {
            "first": torch.optim.SGD(model[0].parameters(), lr=0.1),
            "middle": torch.optim.SGD(model[2].parameters(), lr=0.1, momentum=0.9),
            "last": torch.optim.SGD(model[4].parameters(), lr=0.05),
        }
        updater = Updater(optimizers, mode, max_grad_norm=1.0)
        for step in range(10):
            updater.update(tokens([4, 3, 2], seed=step), token_loss(model))
        assert updater.steps == 10
        results.append([p.detach() for p in model.parameters()])
    assert distance(results[1], results[0]) <= TOLERANCE[precision] * norm(results[0])


@every_precision
def test_either_all_optimizers_step_or_none(precision):  # E50
    healthy, sick = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizers = {"healthy": torch.optim.SGD([healthy], lr=1.0), "sick": torch.optim.SGD([sick], lr=1.0)}
    updater = Updater(optimizers, precision)
    report = updater.update([samples(1, math.inf)], lambda x: ((healthy * x[0] + sick * x[1]).sum(), 1))
    assert report.outcome == "skipped"
    assert (healthy.item(), sick.item()) == (0.0, 0.0)


@every_precision
def test_updates_of_their_own_step_independently(precision):  # E50: by choice
    healthy, sick = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    updaters = {
        name: Updater({name: torch.optim.SGD([p], lr=1.0)}, precision, loss_scale=LossScale(64.0))
        for name, p in (("healthy", healthy), ("sick", sick))
    }
    reports = [
        updaters[name].update([samples(x)], lambda x, own=own: ((own * x).sum(), 1))
        for name, own, x in (("healthy", healthy, 1.0), ("sick", sick, math.inf))
    ]
    assert [report.outcome for report in reports] == ["applied", "skipped"]
    assert (healthy.item(), sick.item()) == (-1.0, 0.0)
    if precision == "fp16":
        assert [updater.loss_scale.value for updater in updaters.values()] == [64.0, 32.0]


@every_precision
@pytest.mark.parametrize("variant", ["foreach", "fused"])
def test_an_optimizer_without_gradients_waits_while_the_others_step(precision, variant):  # E51, E58, C28, C32
    used, idle = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizers = {
        "used": torch.optim.SGD([used], lr=1.0, **{variant: True}),
        "idle": torch.optim.AdamW([idle], lr=0.1, weight_decay=0.5, **{variant: True}),
    }
    updater = Updater(optimizers, precision)
    steps = recorded_gradients(optimizers["idle"])
    updater.update([samples(1)], lambda x: ((used * x + idle * x).sum(), 1))
    before = copy.deepcopy([idle.detach(), optimizers["idle"].state_dict()])
    assert updater.update([samples(1)], lambda x: ((used * x).sum(), 1)).outcome == "applied"
    assert used.item() == -1.0
    assert identical(before, [idle.detach(), optimizers["idle"].state_dict()])
    assert len(steps) == 1


@every_precision
@pytest.mark.parametrize("variant", ["foreach", "fused"])
def test_a_parameter_without_a_gradient_is_not_moved_by_weight_decay(precision, variant):  # E58, C28
    used, unused = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([used, unused], lr=0.1, weight_decay=0.5, **{variant: True})
    updater = Updater({"adam": optimizer}, precision)
    for _ in range(2):
        updater.update([samples(1)], lambda x: ((used * x).sum(), 1))
    assert unused.item() == 1.0
    assert used.item() < 0.9


@every_precision
@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
def test_a_window_in_which_no_parameter_gets_a_gradient_is_empty(precision, on_device):  # E52, C40
    elsewhere = nn.Parameter(torch.ones(1))
    weight, updater = slope(precision=precision)
    one = torch.tensor(1) if on_device else 1
    report = updater.update([samples(1)] * 2, lambda x: ((elsewhere * x).sum(), one))
    assert (report.outcome, report.reason, updater.empty, updater.steps) == ("empty", "no gradient", 1, 0)
    assert weight.item() == 0.0
    assert elsewhere.grad is None


def test_a_parameter_of_two_optimizers_is_refused():  # E53
    weight = nn.Parameter(torch.zeros(2, 3))
    optimizers = {"a": torch.optim.SGD([weight], lr=1.0), "b": torch.optim.Adam([weight], lr=1.0)}
    with pytest.raises(
        ValueError, match=r"must belong to one optimizer, but 'a' and 'b' share b\[0\] of shape \(2, 3\)"
    ):
        Updater(optimizers)


def test_there_must_be_something_to_train():
    with pytest.raises(ValueError, match="optimizers must name at least one optimizer, but got none"):
        Updater({})
    frozen = nn.Parameter(torch.zeros(1), requires_grad=False)
    with pytest.raises(ValueError, match="must hold a parameter that requires a gradient, but none of sgd does"):
        Updater({"sgd": torch.optim.SGD([frozen], lr=1.0)})


@every_precision
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=["fused", "foreach"])
def test_variants_of_an_optimizer_train_and_skip_alike(precision, kind, options):  # E55, C28
    results = []
    for variant in (options, {"foreach": False}):
        torch.manual_seed(0)
        model = classifier()
        optimizer = kind(model.parameters(), lr=1e-2, **variant)
        updater = Updater({"it": optimizer}, precision)
        for step in range(6):
            batches = tokens([4, 3], seed=step)
            if step == 2:
                batches[1][0][0, 0] = math.inf
            before = copy.deepcopy([dict(model.state_dict()), optimizer.state_dict()])
            report = updater.update(batches, token_loss(model))
            assert report.outcome == ("skipped" if step == 2 else "applied")
            assert identical(before, [dict(model.state_dict()), optimizer.state_dict()]) == (step == 2)
        assert (updater.steps, updater.skipped) == (5, 1)
        results.append([p.detach() for p in model.parameters()])
    assert distance(*results) <= 1e-5 * norm(results[0])


def test_the_schedule_of_an_optimizer_without_gradients_waits_for_it():  # E51, F59
    used, idle = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    optimizers = {name: torch.optim.SGD(m.parameters(), lr=1.0) for name, m in (("used", used), ("idle", idle))}
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5) for optimizer in optimizers.values()]
    updater = Updater(optimizers, schedulers=schedulers)
    updater.update([torch.ones(1, 1)], lambda x: (used(x).mean(), 1))
    assert [scheduler.get_last_lr() for scheduler in schedulers] == [[0.5], [1.0]]
