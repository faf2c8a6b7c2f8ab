"""Test what an update may train, under which names, and what changes when a parameter is frozen, thawed or added."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from searchlight.trainables.update import Updater
from tests.trainables.toy_models import (
    IGNORED,
    classifier,
    norm,
    recorded_gradients,
    samples,
    scaled_and_unscaled,
    slope_loss,
    token_loss,
    tokens,
)

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.mark.parametrize(
    ("named", "modules", "name", "dtype"),
    [
        pytest.param(False, False, r"adam\[2\]", "float16", id="by-its-place"),
        pytest.param(True, False, r"2\.weight", "float16", id="by-the-optimizer's-name"),
        pytest.param(False, True, r"net\.2\.weight", "bfloat16", id="by-its-module"),
        pytest.param(True, True, r"net\.2\.weight", "bfloat16", id="by-its-module-first"),
    ],
)
def test_half_precision_parameter_is_refused_by_name(named, modules, name, dtype):  # E54, C33
    model = classifier()
    model[2].weight.data = model[2].weight.data.to(HALF[dtype])
    optimizer = torch.optim.AdamW(model.named_parameters() if named else model.parameters())
    with pytest.raises(
        ValueError, match=rf"'adam' must be fp32, but got {name} in {dtype}\. Train an fp32 copy: module\.float\(\)"
    ):
        Updater({"adam": optimizer}, "fp16", modules={"net": model} if modules else None)


class NeedsClosure(torch.optim.SGD):
    """Evaluates the loss twice per step, as sharpness-aware minimization does."""

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        loss = closure()
        super().step()
        return loss


def parameter() -> nn.Parameter:
    return nn.Parameter(torch.zeros(2, 3))


def many_halves() -> Updater:
    model = nn.ModuleList(nn.Linear(1, 1).half() for _ in range(4))
    return Updater({"adam": torch.optim.AdamW(model.parameters())}, modules={"all": model})


def of_kind(dtype: torch.dtype, precision: str = "fp32") -> Updater:
    weight = nn.Parameter(torch.zeros(1, dtype=dtype))
    return Updater({"sgd": torch.optim.SGD([weight], lr=1.0)}, precision, bf16_parameters=True)


def twice() -> Updater:
    shared = parameter()
    return Updater({"a": torch.optim.SGD([shared], lr=1.0), "b": torch.optim.Adam([shared], lr=1.0)})


FROZEN = torch.optim.SGD([nn.Parameter(torch.zeros(1), requires_grad=False)], lr=1.0)
UNTRAINABLE: dict[str, tuple[Callable[[], Updater], str]] = {
    "many-halves": (many_halves, r"got all\.0\.weight in float16, .*, all\.2\.weight in float16 and 3 more\."),
    "scaled-bf16": (lambda: of_kind(torch.bfloat16, "fp16"), r"'sgd' must be fp32, but got sgd\[0\] in bfloat16"),
    "fp16-as-bf16": (lambda: of_kind(torch.float16), r"'sgd' must be fp32, but got sgd\[0\] in float16"),
    "complex": (lambda: of_kind(torch.complex64), r"'sgd' must be real numbers, but sgd\[0\] is complex"),
    "lbfgs": (lambda: Updater({"own": torch.optim.LBFGS([parameter()])}), "'own' must .* closure, but got LBFGS"),
    "closure": (lambda: Updater({"own": NeedsClosure([parameter()])}), "'own' must .* closure, but got NeedsClosure"),
    "two-owners": (twice, r"must belong to one optimizer, but 'a' and 'b' share b\[0\] of shape \(2, 3\)"),
    "no-optimizer": (lambda: Updater({}), "optimizers must name at least one optimizer, but got none"),
    "frozen": (lambda: Updater({"sgd": FROZEN}), "a parameter that requires a gradient, but none of sgd does"),
}


@pytest.mark.parametrize("case", UNTRAINABLE)
def test_untrainable_optimizers_raise_value_error(case):  # C33, E53, E54, E56
    build, message = UNTRAINABLE[case]
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_bf16_parameters_train_by_choice_in_large_steps(precision):  # E54
    small, large = (nn.Parameter(torch.ones(1, dtype=torch.bfloat16)) for _ in range(2))
    optimizers = {"small": torch.optim.SGD([small], lr=1e-3), "large": torch.optim.SGD([large], lr=0.25)}
    with pytest.raises(ValueError, match=r"'small' must be fp32, but got small\[0\] in bfloat16"):
        Updater(optimizers, precision)
    updater = Updater(optimizers, precision, bf16_parameters=True)
    for _ in range(3):
        report = updater.update([samples(1), samples(1)], lambda x: (((small + large) * x).sum(), 1))
        assert report.outcome == "applied"
    assert (small.item(), large.item()) == (1.0, 0.25)  # 1 - 0.001 is 1 in bf16, however often


def frozen_and_trained() -> tuple[nn.Sequential, Updater, list[list[Tensor]]]:
    model = classifier()
    model[0].requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    return model, Updater({"adam": optimizer}, "fp16", modules={"net": model}), recorded_gradients(optimizer)


FIRST, LAST = ["net.0.weight", "net.0.bias"], ["net.2.weight", "net.2.bias"]


def test_frozen_parameter_stays_until_it_is_thawed():  # E58
    model, updater, seen = frozen_and_trained()
    shapes = []
    for first, last, trained in ((False, True, LAST), (True, True, FIRST + LAST), (True, False, FIRST)):
        model[0].requires_grad_(first)
        model[2].requires_grad_(last)
        before = [model[place].weight.detach().clone() for place in (0, 2)]
        updater.update(tokens([4, 3]), token_loss(model))
        moved = [not torch.equal(model[place].weight, weight) for place, weight in zip((0, 2), before, strict=True)]
        assert moved == [first, last]
        assert updater.trainable_names() == trained
        shapes.append([tuple(gradient.shape) for gradient in seen[-1]])
    assert shapes == [[(3, 8), (3,)], [(8, 5), (8,), (3, 8), (3,)], [(8, 5), (8,)]]
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="must hold a parameter that requires a gradient, but none of adam does"):
        updater.update(tokens([4]), token_loss(model))


@pytest.mark.parametrize("in_exchange", [False, True], ids=["in-addition", "in-exchange-for-another"])
def test_half_precision_parameter_is_refused_when_thawed(in_exchange):  # E54, C33
    model, _, _ = frozen_and_trained()
    model[0].half()
    updater = Updater({"adam": torch.optim.AdamW(model.parameters())}, modules={"net": model})  # frozen, it may be half
    assert updater.trainable_names() == LAST
    model[0].weight.requires_grad_(True)
    if in_exchange:
        model[2].weight.requires_grad_(False)
    with pytest.raises(ValueError, match=r"'adam' must be fp32, but got net\.0\.weight in float16"):
        updater.update(tokens([4]), token_loss(model))
    assert updater.steps == 0


def test_parameter_that_replaces_another_is_trained():
    old, new = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([old], lr=1.0)
    updater = Updater({"sgd": optimizer})
    updater.update([samples(1)], slope_loss(old))
    optimizer.param_groups[0]["params"] = [new]
    updater.update([samples(2)], slope_loss(new))
    assert (old.item(), new.item()) == (-1.0, -2.0)


def test_gradients_outside_all_optimizers_are_left_alone():  # E53
    model = classifier()
    updater = Updater({"sgd": torch.optim.SGD(model[2].parameters(), lr=0.1)}, modules={"net": model})
    others = torch.full_like(model[0].weight, 7.0)
    model[0].weight.grad = others.clone()
    updater.update(tokens([4]), token_loss(model))
    assert torch.equal(model[0].weight.grad, others)
    assert updater.trainable_names() == LAST


@scaled_and_unscaled
def test_gradient_norms_are_those_of_the_true_gradients(precision):  # D44
    model = classifier()
    unused = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([*model.parameters(), unused], lr=0.1)
    seen = recorded_gradients(optimizer)
    updater = Updater({"sgd": optimizer}, precision, modules={"net": model})
    report = updater.update(tokens([4, 1, 7]), token_loss(model))
    norms = updater.gradient_norms()
    assert list(norms) == FIRST + LAST
    assert "sgd[4]" in updater.trainable_names()
    assert list(norms.values()) == pytest.approx([norm([gradient]) for gradient in seen[0]], rel=1e-6)
    assert report.grad_norm == pytest.approx(math.hypot(*norms.values()))
    updater.update([(inputs, torch.full_like(labels, IGNORED)) for inputs, labels in tokens([4])], token_loss(model))
    assert updater.gradient_norms() == {}


def test_only_reentrant_activation_checkpoint_is_refused():
    block, head = nn.Linear(2, 2), nn.Linear(2, 1)
    updater = Updater({"sgd": torch.optim.SGD([*block.parameters(), *head.parameters()], lr=0.1)})

    def update(reentrant: bool) -> None:
        def loss(x: Tensor) -> tuple[Tensor, int]:
            return head(checkpoint(block, x.requires_grad_(), use_reentrant=reentrant)).mean(), len(x)

        updater.update([torch.ones(3, 2)], loss)

    with pytest.raises(ValueError, match="activation checkpoints must not be reentrant"):
        update(True)
    before = block.weight.detach().clone()
    update(False)
    assert not torch.equal(block.weight, before)
