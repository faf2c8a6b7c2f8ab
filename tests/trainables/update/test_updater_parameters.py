"""What an update may train, under which names, and what changes when a parameter is frozen, thawed or added."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.trainables.toy_models import (
    IGNORED,
    classifier,
    every_precision,
    norm,
    recorded_gradients,
    samples,
    token_loss,
    tokens,
)
from trainables.update import Updater

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}


# Half precision


@every_precision
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(
    ("named", "modules", "name"),
    [
        pytest.param(False, False, r"adam\[2\]", id="by-its-place"),
        pytest.param(True, False, r"2\.weight", id="by-the-optimizer's-name"),
        pytest.param(False, True, r"net\.2\.weight", id="by-its-module"),
        pytest.param(True, True, r"net\.2\.weight", id="by-its-module-first"),
    ],
)
def test_half_precision_parameters_are_refused_by_name(precision, dtype, named, modules, name):  # E54, C33
    model = classifier()
    model[2].weight.data = model[2].weight.data.to(HALF[dtype])
    optimizer = torch.optim.AdamW(model.named_parameters() if named else model.parameters())
    with pytest.raises(
        ValueError, match=rf"'adam' must be fp32, but got {name} in {dtype}\. Train an fp32 copy: module\.float\(\)"
    ):
        Updater({"adam": optimizer}, precision, modules={"net": model} if modules else None)


def test_many_half_precision_parameters_are_counted():  # E54, C33
    model = nn.ModuleList(nn.Linear(1, 1).half() for _ in range(4))
    with pytest.raises(ValueError, match=r"got all\.0\.weight in float16, .*, all\.2\.weight in float16 and 3 more\."):
        Updater({"adam": torch.optim.AdamW(model.parameters())}, modules={"all": model})


def test_frozen_parameters_may_be_in_half_precision():  # E54
    model = classifier()
    model[0].half().requires_grad_(False)
    updater = Updater({"adam": torch.optim.AdamW(model.parameters())}, "fp16", modules={"net": model})
    assert updater.trainable_names() == ["net.2.weight", "net.2.bias"]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bf16_parameters_are_trained_by_choice_and_never_move_by_little(precision):  # E54
    small, large = (nn.Parameter(torch.ones(1, dtype=torch.bfloat16)) for _ in range(2))
    optimizers = {"small": torch.optim.SGD([small], lr=1e-3), "large": torch.optim.SGD([large], lr=0.25)}
    with pytest.raises(ValueError, match=r"'small' must be fp32, but got small\[0\] in bfloat16"):
        Updater(optimizers, precision)
    updater = Updater(optimizers, precision, bf16_parameters=True)
    for _ in range(3):
        report = updater.update([samples(1), samples(1)], lambda x: (((small + large) * x).sum(), 1))
        assert report.outcome == "applied"
    assert (small.item(), large.item()) == (1.0, 0.25)  # 1 - 0.001 is 1 in bf16, however often


def test_bf16_parameters_need_a_precision_that_does_not_scale_the_loss():  # C33
    model = classifier().bfloat16()
    with pytest.raises(ValueError, match=r"'adam' must be fp32, but got adam\[0\] in bfloat16"):
        Updater({"adam": torch.optim.AdamW(model.parameters())}, "fp16", bf16_parameters=True)


@every_precision
def test_the_choice_of_bf16_does_not_let_fp16_in(precision):  # E54, C33
    model = classifier().half()
    with pytest.raises(ValueError, match=r"'adam' must be fp32, but got adam\[0\] in float16"):
        Updater({"adam": torch.optim.AdamW(model.parameters())}, precision, bf16_parameters=True)


# Closures


class NeedsClosure(torch.optim.SGD):
    """Evaluates the loss twice per step, as sharpness-aware minimisation does."""

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        loss = closure()
        super().step()
        return loss


@every_precision
@pytest.mark.parametrize("kind", [torch.optim.LBFGS, NeedsClosure])
def test_an_optimizer_that_needs_a_closure_is_refused(precision, kind):  # E56
    optimizer = kind(nn.Linear(1, 1).parameters(), lr=0.1)
    with pytest.raises(ValueError, match=f"'quasi' must step without a closure, but got {kind.__name__}"):
        Updater({"quasi": optimizer}, precision)


# Frozen, thawed, added


def frozen_and_trained() -> tuple[nn.Sequential, torch.optim.Optimizer, list[list[Tensor]]]:
    model = classifier()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    return model, optimizer, recorded_gradients(optimizer)


@every_precision
def test_a_frozen_parameter_stays_until_it_is_thawed(precision):  # E58
    model, optimizer, seen = frozen_and_trained()
    updater = Updater({"adam": optimizer}, precision, modules={"net": model})
    first = model[0].weight.detach().clone()
    updater.update(tokens([4, 3]), token_loss(model))
    assert updater.trainable_names() == ["net.2.weight", "net.2.bias"]
    assert torch.equal(model[0].weight, first)
    model[0].requires_grad_(True)
    updater.update(tokens([4, 3]), token_loss(model))
    assert updater.trainable_names() == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]
    assert not torch.equal(model[0].weight, first)
    thawed = model[0].weight.detach().clone()
    model[0].requires_grad_(False)
    updater.update(tokens([4, 3]), token_loss(model))
    assert torch.equal(model[0].weight, thawed)
    assert [len(gradients) for gradients in seen] == [2, 4, 2]


@every_precision
@pytest.mark.parametrize("in_exchange", [False, True], ids=["in-addition", "in-exchange-for-another"])
@pytest.mark.parametrize("dtype", HALF)
def test_a_thawed_parameter_in_half_precision_is_refused(precision, in_exchange, dtype):  # E54, C33
    model, optimizer, _ = frozen_and_trained()
    model[0].weight.data = model[0].weight.data.to(HALF[dtype])
    updater = Updater({"adam": optimizer}, precision, modules={"net": model})
    model[0].weight.requires_grad_(True)
    if in_exchange:
        model[2].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=rf"'adam' must be fp32, but got net\.0\.weight in {dtype}"):
        updater.update(tokens([4]), token_loss(model))
    assert updater.steps == 0


@every_precision
def test_a_parameter_that_is_frozen_in_exchange_for_another_is_not_trained(precision):
    model, optimizer, seen = frozen_and_trained()
    updater = Updater({"adam": optimizer}, precision, modules={"net": model})
    updater.update(tokens([4, 3]), token_loss(model))
    model[0].requires_grad_(True)
    model[2].requires_grad_(False)
    updater.update(tokens([4, 3]), token_loss(model))
    assert updater.trainable_names() == ["net.0.weight", "net.0.bias"]
    assert [[gradient.shape for gradient in gradients] for gradients in seen] == [[(3, 8), (3,)], [(8, 5), (8,)]]


def test_an_update_that_nothing_is_left_to_train_in_is_refused():
    model = classifier()
    updater = Updater({"adam": torch.optim.AdamW(model.parameters())})
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="must hold a parameter that requires a gradient, but none of adam does"):
        updater.update(tokens([4]), token_loss(model))


@every_precision
def test_a_parameter_that_is_added_to_an_optimizer_is_trained(precision):
    model = classifier()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    updater = Updater({"sgd": optimizer}, precision, modules={"net": model})
    updater.update(tokens([4]), token_loss(model))
    optimizer.add_param_group({"params": list(model[0].parameters())})
    first = model[0].weight.detach().clone()
    updater.update(tokens([4]), token_loss(model))
    assert updater.trainable_names() == ["net.2.weight", "net.2.bias", "net.0.weight", "net.0.bias"]
    assert not torch.equal(model[0].weight, first)
    assert all(p.grad is None for p in model.parameters())


def test_gradients_of_parameters_that_no_optimizer_has_are_left_alone():  # E53
    model = classifier()
    updater = Updater({"sgd": torch.optim.SGD(model[2].parameters(), lr=0.1)}, modules={"net": model})
    others = torch.full_like(model[0].weight, 7.0)
    model[0].weight.grad = others.clone()
    updater.update(tokens([4]), token_loss(model))
    assert torch.equal(model[0].weight.grad, others)
    assert updater.trainable_names() == ["net.2.weight", "net.2.bias"]


# Norms by parameter


@every_precision
def test_the_norm_of_each_parameter_is_that_of_its_true_gradient(precision):  # D44
    model = classifier()
    unused = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([*model.parameters(), unused], lr=0.1)
    seen = recorded_gradients(optimizer)
    updater = Updater({"sgd": optimizer}, precision, modules={"net": model})
    report = updater.update(tokens([4, 1, 7]), token_loss(model))
    norms = updater.gradient_norms()
    assert list(norms) == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]
    assert "sgd[4]" in updater.trainable_names()
    assert list(norms.values()) == pytest.approx([norm([gradient]) for gradient in seen[0]], rel=1e-6)
    assert report.grad_norm == pytest.approx(math.hypot(*norms.values()))
    updater.update([(inputs, torch.full_like(labels, IGNORED)) for inputs, labels in tokens([4])], token_loss(model))
    assert updater.gradient_norms() == {}
