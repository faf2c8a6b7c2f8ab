"""Synapses whose weights follow a local rule instead of a gradient."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from searchlight.models.liquid.plasticity.rules import Rule


class PlasticSynapses(nn.Module):
    """Weights between two populations of neurons, changed by the spikes of both.

    The weights are a buffer in [0, w_max], without optimizer or weight decay. `scale` is an ordinary parameter, the
    sign and size of their contribution to each postsynaptic neuron. Call `observe` for each micro-batch of a window.
    Then call `update` once to change the weights, or `discard` if the window was skipped. Sum `pending` over ranks
    before `update`.

    Args:
        pre: Presynaptic neurons.
        post: Postsynaptic neurons.
        rule: The plasticity rule.
        rate: Learning rate of all terms of the rule, a factor of the rule's mean per sample and step.
        w_max: Upper bound of the weights.
        softness: mu of soft bounds: potentiation times (1 - w / w_max)^mu, depression times (w / w_max)^mu (Guetig et
            al. 2003). At 0, bounds are hard: weights accumulate there, where rates have no gradient.
        stiffness: m of consolidation: depression is scaled by 1 - tanh^2(m w / w_max), so that strong synapses stay
            (Laborieux et al. 2021). 0 for none.
        learn_rates: Make the rate of each term a parameter, within a factor of 10 of `rate`, learned from the effect of
            the last update on the loss: see `forward`.
        cap: Largest norm of an update, as a share of the norm of the weights, above 0 and below 1: at 1, all weights
            could become 0 and stay there.
    """

    weight: Tensor
    scale: nn.Parameter
    state: Tensor
    changes: Tensor
    pending_counts: Tensor
    log_rates: nn.Parameter | None  # before tanh

    def __init__(
        self,
        pre: int,
        post: int,
        rule: Rule,
        *,
        rate: float = 1.0,
        w_max: float = 1.0,
        softness: float = 0.0,
        stiffness: float = 0.0,
        learn_rates: bool = False,
        cap: float = 0.1,
    ) -> None:
        super().__init__()
        self.rule, self.rate, self.w_max = rule, rate, w_max
        self.softness, self.stiffness, self.cap = softness, stiffness, cap

        terms = len(rule.terms)
        self.scale = nn.Parameter(torch.full((post,), pre**-0.5))
        self.log_rates = nn.Parameter(torch.zeros(terms)) if learn_rates else None
        self.register_buffer("weight", torch.rand(post, pre) * w_max)
        self.register_buffer("state", torch.tensor(rule.start(post)))
        # The change by each term in the last update, from which `forward` derives the gradient of its rate.
        self.register_buffer("changes", torch.zeros(terms if learn_rates else 0, post, pre))

        silence = torch.zeros(1, 1, 1)
        sums = rule.compute_sums(silence.expand(1, 1, pre), silence.expand(1, 1, post))
        for name, value in sums._asdict().items():
            self.register_buffer(f"pending_{name}", torch.zeros_like(value), persistent=False)
        self.register_buffer("pending_counts", torch.zeros(2), persistent=False)

    def forward(self, spikes: Tensor) -> Tensor:
        """Return the current scale * (spikes @ weight^T), minus the rule's inhibition.

        Learned rates do not change the value. The gradient of the log of a rate is <dL/dW, the last change of W by its
        term>: the change of the loss if the last update had used another rate. This is hypergradient descent (Baydin et
        al. 2018) of a local rule.

        Args:
            spikes: Shape (B, T, pre), floating point.

        Returns:
            Current, shape (B, T, post).
        """
        weight = self.weight
        if self.log_rates is not None and torch.is_grad_enabled():
            factors = _compute_factors(self.log_rates)
            weight = weight + ((factors / factors.detach() - 1).view(-1, 1, 1) * self.changes).sum(0)
        current = F.linear(spikes, weight) * self.scale
        inhibition = self.rule.get_inhibition(self.state)
        return current if inhibition is None else current - inhibition

    @torch.no_grad()
    def observe(self, pre: Tensor, post: Tensor) -> None:
        """Add the spikes of a micro-batch to the pending sums.

        Args:
            pre: Presynaptic spikes, shape (B, T, pre), of any type.
            post: Postsynaptic spikes, shape (B, T, post).

        Raises:
            ValueError: The shapes do not fit.
        """
        rows, columns = self.weight.shape
        if pre.dim() != 3 or pre.shape[-1] != columns or post.shape != (*pre.shape[:2], rows):
            raise ValueError(
                f"spikes must have the shapes (B, T, {columns}) and (B, T, {rows}), but got {tuple(pre.shape)} and "
                f"{tuple(post.shape)}. Give those in front of the synapses first, then those behind."
            )
        with torch.autocast(pre.device.type, enabled=False):
            sums = self.rule.compute_sums(pre.to(self.weight.dtype), post.to(self.weight.dtype))
        for pending, value in zip(self.get_pending()[:3], sums, strict=True):
            pending += value
        samples, steps = self.pending_counts  # added to as numbers: a tensor of them would be copied to the GPU
        samples += len(pre)
        steps += len(pre) * pre.shape[1]

    def get_pending(self) -> list[Tensor]:
        """Return the sums since the last update and then the counts, to be summed over ranks in place."""
        names = ("potentiation", "depression", "activity", "counts")
        return [self.get_buffer(f"pending_{name}") for name in names]

    def discard(self) -> None:
        """Discard the sums since the last update."""
        for pending in self.get_pending():
            pending.zero_()

    @torch.no_grad()
    def update(self) -> dict[str, float] | None:
        """Change the weights by the pending sums, and discard these.

        Returns:
            A dict, or None if no sums are pending. "change" is the norm of the change relative to that of the weights.
            "capped" is 1 if `cap` limited it. "weight" is the mean weight relative to the largest. "bound" is the share
            of weights within 1 % of a bound. "rate_" and the name of a term is its rate.

        Raises:
            ValueError: The sums are not finite. The weights stay unchanged.
        """
        samples, steps = self.pending_counts
        potentiation, depression, activity = (pending / steps for pending in self.get_pending()[:3])
        state = self.rule.remember(self.state, activity, steps / samples)
        directions = self.rule.compute_directions(potentiation, depression, state)
        rates = self._get_rates()
        change, terms, capped = self._bound_update(torch.stack(directions) * rates.view(-1, 1, 1))
        weight = (self.weight + change).clamp(0, self.w_max)

        figures = {
            "change": change.norm() / self.weight.norm().clamp(min=torch.finfo(change.dtype).tiny),
            "capped": capped,
            "weight": weight.mean() / self.w_max,
            "bound": ((weight / self.w_max - 0.5).abs() >= 0.49).to(weight.dtype).mean(),
        } | {f"rate_{name}": rate for name, rate in zip(self.rule.terms, rates, strict=True)}
        pending_steps, *read = torch.stack([steps, *figures.values()]).tolist()  # the only wait for the GPU
        if not pending_steps:
            return None
        told = dict(zip(figures, read, strict=True))
        if not math.isfinite(told["change"]):
            raise ValueError("spikes must be finite, but got some that are not. Discard windows that were skipped.")

        self.weight.copy_(weight)
        self.state.copy_(state)
        if self.log_rates is not None:
            self.changes.copy_(terms)
        self.discard()
        return told

    def _get_rates(self) -> Tensor:
        """Return the present rate of each term."""
        if self.log_rates is None:
            return self.weight.new_full((len(self.rule.terms),), self.rate)
        return self.rate * _compute_factors(self.log_rates)

    def _bound_update(self, terms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Limit an update, the sum of terms (terms, post, pre), to the bounds of weights and the cap.

        Returns:
            The update; its derivative by the log of each term's rate, in the shape of the terms; whether it was capped.
        """
        level = self.weight / self.w_max
        if self.softness:
            terms[0] *= (1 - level) ** self.softness
            terms[1] *= level**self.softness
        change = terms.sum(0)
        if self.stiffness:
            gain = torch.where(change < 0, 1 - (self.stiffness * level).tanh().square(), 1.0)
            change, terms = change * gain, terms * gain
        moved = self.weight + change
        inside = (moved > 0) & (moved < self.w_max)
        change, terms = moved.clamp(0, self.w_max) - self.weight, terms * inside

        norm = change.norm().clamp(min=torch.finfo(change.dtype).tiny)
        shrink = (self.cap * self.weight.norm() / norm).clamp(max=1)
        capped = shrink < 1
        # The norm of a capped update does not depend on the rates, but its direction does. With u the sum of the terms
        # t_k, each multiplied by its rate, d(c |w| u / |u|) / d(log rate_k) = c |w| / |u| (t_k - <t_k, u> u / |u|^2).
        direction = change / norm
        along = (terms * direction).sum((1, 2)) * capped
        terms = shrink * (terms - along.view(-1, 1, 1) * direction)
        return shrink * change, terms, capped.to(change.dtype)


def _compute_factors(log_rates: Tensor) -> Tensor:
    """Return the learned factors of the rates, in 0.1..10."""
    return 10 ** log_rates.tanh()
