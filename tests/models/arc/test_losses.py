import math

import pytest
import torch

from models.arc import BORDER, PAD, SYMBOLS, cell_loss


def test_uniform_logits_cost_the_logarithm_of_the_symbols() -> None:
    target = torch.randint(SYMBOLS, (3, 4, 4), dtype=torch.uint8)
    loss, weight = cell_loss(torch.zeros(2, 3, 4, 4, SYMBOLS), target)
    assert loss.item() == pytest.approx(math.log(SYMBOLS), rel=1e-6)
    assert weight.item() == 3
    assert weight.dtype == torch.float32


def test_the_loss_by_hand() -> None:
    target = torch.tensor([[[5, BORDER], [BORDER, PAD]]], dtype=torch.uint8)
    logits = torch.zeros(1, 1, 2, 2, SYMBOLS)
    logits[0, 0, 0, 0, 5] = 100.0  # right, and sure: costs nothing
    loss, _ = cell_loss(logits, target, border_weight=0.5, pad_weight=0.25)
    assert loss.item() == pytest.approx(math.log(SYMBOLS) * 1.25 / 2.25, rel=1e-5)


def test_steps_and_episodes_count_alike() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, 4, SYMBOLS, generator=generator)
    target = torch.randint(SYMBOLS, (3, 4, 4), generator=generator, dtype=torch.uint8)
    target[0] = PAD
    target[0, 0, 0] = 5
    parts = [
        cell_loss(logits[step : step + 1, episode : episode + 1], target[episode : episode + 1])[0]
        for step in range(2)
        for episode in range(3)
    ]
    torch.testing.assert_close(cell_loss(logits, target)[0], torch.stack(parts).mean())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_loss_is_computed_in_float32(dtype: torch.dtype) -> None:  # G71, C48
    logits = 40 * torch.randn(2, 3, 4, 4, SYMBOLS, dtype=dtype)
    target = torch.randint(SYMBOLS, (3, 4, 4), dtype=torch.uint8)
    with torch.autocast("cpu", dtype=dtype):
        loss, _ = cell_loss(logits, target)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, cell_loss(logits.float(), target)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_gradient_of_the_loss_is_that_of_float32(dtype: torch.dtype) -> None:  # G71, C48
    logits = 40 * torch.randn(2, 3, 4, 4, SYMBOLS).to(dtype)
    target = torch.randint(SYMBOLS, (3, 4, 4), dtype=torch.uint8)
    half, full = logits.clone().requires_grad_(), logits.float().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        loss, weight = cell_loss(half, target)
    loss.backward()
    cell_loss(full, target)[0].backward()
    assert weight.dtype == torch.float32
    torch.testing.assert_close(half.grad, full.grad.to(dtype))
