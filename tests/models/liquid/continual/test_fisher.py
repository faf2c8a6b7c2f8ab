"""The Fisher information, from the gradient of each sample on its own."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from models.liquid.continual import (
    fisher_diagonal,
    masked_logits,
    sampled_log_likelihood,
)
from tests.models.liquid.continual.labels import every_label

SAMPLES = 400


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def logistic(weights: Tensor, x: Tensor) -> Tensor:
    """Logits of (no, yes), shape (1, 2): p(yes) is the logistic function of w x."""
    return torch.stack([torch.zeros(()), weights @ x])[None]


@pytest.fixture
def toy() -> tuple[nn.Parameter, Tensor, Tensor]:
    """Weights, inputs, and the closed form of the Fisher's diagonal: the mean of x^2 p (1 - p)."""
    weights = nn.Parameter(torch.tensor([0.8, -0.5, 0.0]))
    inputs = torch.randn(SAMPLES, 3, generator=generator(1)) * torch.tensor([1.0, 2.0, 0.5])
    p = (inputs @ weights.detach()).sigmoid()
    return weights, inputs, (inputs.square() * (p * (1 - p))[:, None]).mean(0)


def diagonal(weights: nn.Parameter, items: Iterator[Tensor]) -> Tensor:
    sums, count = fisher_diagonal({"w": weights}, items)
    assert count == SAMPLES
    return sums["w"] / count


def test_all_labels_give_the_closed_form(toy: tuple[nn.Parameter, Tensor, Tensor]) -> None:  # C100
    weights, inputs, expected = toy
    sums, count = fisher_diagonal({"w": weights}, every_label(lambda x: logistic(weights, x), inputs))
    assert count == 2 * SAMPLES
    torch.testing.assert_close(sums["w"] / SAMPLES, expected, rtol=1e-4, atol=1e-6)


def test_labels_of_the_model_give_it_but_for_the_noise_of_the_draw(
    toy: tuple[nn.Parameter, Tensor, Tensor],
) -> None:  # C100
    weights, inputs, expected = toy
    draws = generator()
    found = [diagonal(weights, (sampled_log_likelihood(logistic(weights, x), draws) for x in inputs)) for _ in range(4)]
    torch.testing.assert_close(torch.stack(found).mean(0), expected, rtol=0.1, atol=0)


def test_the_square_of_the_mean_gradient_is_something_else(toy: tuple[nn.Parameter, Tensor, Tensor]) -> None:  # C100
    weights, inputs, expected = toy
    draws = generator()
    squares = torch.zeros(3)
    for batch in inputs.split(8):
        mean = torch.stack([sampled_log_likelihood(logistic(weights, x), draws) for x in batch]).mean()
        squares += torch.autograd.grad(mean, weights)[0].square() / (SAMPLES / 8)
    assert (squares < expected / 4).all()


def test_samples_of_two_ranks_add_up(toy: tuple[nn.Parameter, Tensor, Tensor]) -> None:
    weights, inputs, _ = toy

    def of(rows: Tensor) -> tuple[dict[str, Tensor], int]:
        return fisher_diagonal({"w": weights}, every_label(lambda x: logistic(weights, x), rows))

    (first, some), (second, others), (whole, count) = of(inputs[::2]), of(inputs[1::2]), of(inputs)
    assert some + others == count
    torch.testing.assert_close(first["w"] + second["w"], whole["w"])


def test_what_a_sample_does_not_depend_on_counts_nothing() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    sums, count = fisher_diagonal({"used": used, "unused": unused}, [(used * torch.tensor([2.0, 3.0])).sum()])
    assert (sums["used"].tolist(), sums["unused"].tolist(), count) == ([4, 9], [0, 0, 0], 1)
    assert used.grad is None


def test_nothing_at_all_is_told_from_a_sample_without_a_graph() -> None:
    weight = nn.Parameter(torch.ones(2))
    sums, count = fisher_diagonal({"w": weight}, [])
    assert (sums["w"].tolist(), count) == ([0, 0], 0)
    with torch.no_grad(), pytest.raises(ValueError, match="must depend on a parameter"):
        fisher_diagonal({"w": weight}, [weight.sum()])


def test_outputs_that_do_not_count_are_never_drawn_and_cost_nothing() -> None:
    head = nn.Linear(3, 4)
    rows = torch.tensor([True, True, False, False])
    x = torch.randn(1, 3, generator=generator())

    draws = generator()
    drawn = (sampled_log_likelihood(masked_logits(head(x), rows), draws) for _ in range(20))
    sums, _ = fisher_diagonal(dict(head.named_parameters()), drawn)
    assert (sums["weight"][:2] > 0).all()
    assert (sums["weight"][2:] == 0).all()


def test_the_labels_of_a_sequence_are_independent_draws_whose_log_likelihoods_add_up() -> None:
    logits = torch.randn(5, 7, generator=generator(), requires_grad=True)
    found = sampled_log_likelihood(logits, generator(3))
    labels = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator(3))
    torch.testing.assert_close(found, logits.log_softmax(-1).gather(1, labels).sum())
