"""The diagonal of the Fisher information, from the gradients of each sample.

The square of a batch's mean gradient differs: it is smaller by about the batch size, and vanishes at an optimum. The
expectation is over the model's outputs. Labels of the data would give the empirical Fisher (van de Ven 2025,
arXiv 2502.11756, compares them).

With outputs z of a softmax and J their Jacobian, the Fisher is J^T M J, where M = diag(p) - p p^T. Vectors a whose
sum of a a^T is M turn the diagonal into a sum of squared gradients, those of a^T z. One label drawn for each sample
has the same expectation but a useless variance: near an optimum, almost no drawn label is wrong, and a wrong one
outweighs all others.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

NEGLIGIBLE = 1e-2  # omitted share of the trace of M over all samples, which saves three of four backward passes


def sum_squared_gradients(
    parameters: Mapping[str, Parameter], samples: Iterable[Tensor]
) -> tuple[dict[str, Tensor], int]:
    """Sum the squared gradients of the scalars of each sample.

    Args:
        parameters: By name. A parameter that a sample does not depend on counts 0.
        samples: For each sample its scalars, shape (n,); n may be 0. A generator keeps only one graph alive.

    Returns:
        Sums by name in fp32 or better, and the number of samples: sum both over the ranks, then divide.
    """
    given = list(parameters.values())
    sums = {
        name: torch.zeros_like(parameter, dtype=torch.promote_types(parameter.dtype, torch.float32))
        for name, parameter in parameters.items()
    }
    totals = list(sums.values())
    count = 0
    for sample in samples:
        for scalar in sample.unbind():
            gradients = torch.autograd.grad(scalar, given, allow_unused=True, retain_graph=True)
            for total, gradient in zip(totals, gradients, strict=True):
                if gradient is not None:
                    total.addcmul_(gradient.to(total), gradient.to(total))
        count += 1
    return sums, count


def compute_directions(logits: Tensor) -> list[Tensor]:
    """Compute vectors a for each sample from the eigenvectors of M, without the smallest over all samples.

    Args:
        logits: Shape (samples, K).

    Returns:
        For each sample its vectors as columns, (K, n) with n < K; one column for two classes.
    """
    p = logits.detach().double().softmax(-1)
    values, vectors = torch.linalg.eigh(torch.diag_embed(p) - p[:, :, None] * p[:, None])
    values = values.clamp(min=0)
    ascending = values.flatten().sort().values
    cut = int((ascending.cumsum(0) <= NEGLIGIBLE * ascending.sum()).sum())
    # If all are similar, the smallest belong to samples of extreme inputs and must not be omitted.
    least = min(float(ascending[min(cut, len(ascending) - 1)]), 0.1 * float(ascending[-1]))
    kept = (values >= least) & (values > 0)
    # M = sum_k lambda_k v_k v_k^T, hence a_k = sqrt(lambda_k) v_k.
    columns = (vectors * values.sqrt()[:, None]).to(logits.dtype)
    return [each[:, keep] for each, keep in zip(columns, kept, strict=True)]


def draw_direction(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one vector a for each row of logits, such that the mean of a a^T is M.

    Random signs weigh all outputs in each draw, so that no draw is rare for any probabilities.

    Args:
        logits: Shape (T, K).
        generator: The only source of randomness.

    Returns:
        Shape (T, K).
    """
    p = logits.detach().softmax(-1)
    # b = sqrt(p) * signs has E[b b^T] = diag(p). With a = b - p (1^T b), E[a a^T] = diag(p) - p p^T, since 1^T p = 1.
    rooted = p.sqrt() * draw_signs(p, generator)
    return rooted - p * rooted.sum(-1, keepdim=True)


def draw_signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw -1 or 1 for each entry, with the shape, type and device of `like`."""
    return (2 * torch.randint(2, like.shape, generator=generator, device=generator.device) - 1).to(like)
