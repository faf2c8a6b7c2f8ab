"""The diagonal of the Fisher information, from the gradient of each sample on its own.

The square of a batch's mean gradient is something else: smaller by about the size of the batch, and it vanishes at an
optimum. Labels come from the model, not from the data: those would give the empirical Fisher (van de Ven 2025,
arXiv 2502.11756, compares them).
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter


def fisher_diagonal(
    parameters: Mapping[str, Parameter], log_likelihoods: Iterable[Tensor]
) -> tuple[dict[str, Tensor], int]:
    """Sum the squared gradients of each sample's log-likelihood.

    Args:
        parameters: By name; one that a sample does not depend on counts 0 there.
        log_likelihoods: One item per sample, of shape (). A generator keeps one graph alive at a time.

    Returns:
        Sums by name in fp32 or better, and the number of samples: add both up over the ranks, then divide.

    Raises:
        ValueError: An item depends on no parameter.
    """
    given = list(parameters.values())
    sums = {
        name: torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32))
        for name, parameter in parameters.items()
    }
    totals = list(sums.values())
    count = 0
    for sample in log_likelihoods:
        if not sample.requires_grad:
            raise ValueError(
                "a log-likelihood must depend on a parameter, but got one without a graph. Compute it with autograd on."
            )
        gradients = torch.autograd.grad(sample, given, allow_unused=True)
        for total, gradient in zip(totals, gradients, strict=True):
            if gradient is not None:
                total.addcmul_(gradient.to(total), gradient.to(total))
        count += 1
    return sums, count


def sampled_log_likelihood(logits: Tensor, generator: torch.Generator) -> Tensor:
    """The log-likelihood of labels that are drawn from the model, one sample's.

    Args:
        logits: Any floating dtype, shape (1, K); or (T, K) of a sequence, whose labels are drawn at each of its T
            steps and whose log-likelihoods are summed.
        generator: The only source of randomness.

    Returns:
        Shape ().
    """
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    labels = torch.multinomial(log_probs.detach().exp().to(generator.device), 1, generator=generator)
    return log_probs.gather(-1, labels.to(logits.device)).sum()
