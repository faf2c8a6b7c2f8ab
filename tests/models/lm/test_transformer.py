"""Test what the transformer's answers depend on."""

import pytest
import torch

from searchlight.models.lm.transformer import Transformer


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(0)
    return Transformer(width=16, depth=2, heads=2)


def test_answers_depend_on_earlier_bytes_alone(model):
    first = torch.randint(256, (1, 12), dtype=torch.uint8)
    second = first.clone()
    second[0, 7:] += 1
    before, after = model(first), model(second)
    assert torch.allclose(before[:, :7], after[:, :7], atol=1e-6)
    assert (before[:, 7:] - after[:, 7:]).abs().amax() > 1e-3


def test_answers_depend_on_the_order_of_bytes(model):
    answers = model(torch.tensor([[1, 2, 3, 9], [2, 1, 3, 9]], dtype=torch.uint8))[:, -1]
    assert (answers[0] - answers[1]).abs().amax() > 1e-4


def test_recomputed_blocks_have_the_same_gradients(model):
    symbols = torch.randint(256, (2, 12))
    gradients = []
    for model.recompute in (False, True):
        loss = model(symbols).square().mean()
        gradients.append(torch.autograd.grad(loss, list(model.parameters())))
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))
