"""Synapses whose weights follow a local rule instead of a gradient."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.liquid.plasticity.rules import Rule


class PlasticSynapses(nn.Module):
    """Weights between two populations of neurons, changed by the spikes that both send.

    No optimizer and no weight decay sees the weights: they are a buffer in [0, w_max]. `scale` is an ordinary
    parameter, the sign and size of what they contribute to each neuron behind them.

    A window of micro-batches is `observe`d one by one; then `update` changes the weights, once, or `discard` forgets
    the window, if its update was skipped. Across ranks, sum what `pending` returns before `update`.

    Args:
        pre: Neurons in front.
        post: Neurons behind.
        rule: What spikes say about the weights.
        rate: Learning rate of all terms of the rule. An update is what the rule says per sample and step, times this.
        w_max: Upper bound of the weights.
        softness: mu of soft bounds: strengthening by (1 - w / w_max)^mu, weakening by (w / w_max)^mu (Guetig et al.
            2003). At 0 bounds are hard: weights gather there, where no rate has a gradient any more.
        stiffness: m of consolidation: a synapse that an update would weaken follows by 1 - tanh^2(m w / w_max)
            only, so that the strong ones stay (Laborieux et al. 2021). 0 for none.
        learn_rates: Make the rate of each term a parameter, within a factor of 10 of `rate`, learned from how the
            loss changes with the last update: see `forward`.
        cap: Largest norm of an update, as a share of the norm of the weights, between 0 and 1.

    Raises:
        ValueError: An argument is out of range.
    """

    weight: Tensor
    scale: nn.Parameter
    state: Tensor
    changes: Tensor
    pending_counts: Tensor
    log_rates: nn.Parameter | None  # before they are squashed

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
        if not 0 < cap < 1:  # at 1, weights could all end at 0, and a share of nothing would keep them there
            raise ValueError(f"cap must be between 0 and 1, but got {cap}. Use 0.1 to start with.")
        for name, value, above in (
            ("pre", pre, True),
            ("post", post, True),
            ("rate", rate, False),
            ("w_max", w_max, True),
            ("softness", softness, False),
            ("stiffness", stiffness, False),
        ):
            if not math.isfinite(value) or value < 0 or (above and value == 0):
                rule_of = "above" if above else "at least"
                raise ValueError(f"{name} must be {rule_of} 0, but got {value}. Choose a finite number.")
        self.rule, self.rate, self.w_max = rule, rate, w_max
        self.softness, self.stiffness, self.cap = softness, stiffness, cap
        terms = len(rule.terms)
        self.scale = nn.Parameter(torch.full((post,), pre**-0.5))
        self.log_rates = nn.Parameter(torch.zeros(terms)) if learn_rates else None
        self.register_buffer("weight", torch.rand(post, pre) * w_max)
        self.register_buffer("state", torch.tensor(rule.start(post)))
        # What each term did in the last update, of which `forward` makes the gradient of its rate.
        self.register_buffer("changes", torch.zeros(terms if learn_rates else 0, post, pre))
        silence = torch.zeros(1, 1, 1)
        sums = rule.sums(silence.expand(1, 1, pre), silence.expand(1, 1, post))
        for name, value in sums._asdict().items():
            self.register_buffer(f"pending_{name}", torch.zeros_like(value), persistent=False)
        self.register_buffer("pending_counts", torch.zeros(2), persistent=False)

    def forward(self, spikes: Tensor) -> Tensor:
        """What the synapses pass on: scale * (spikes @ weight^T), less what the rule inhibits.

        With learned rates, the value is the same, and the gradient of the log of a rate is <dL/dW, what its term
        just did to W>: how the loss would have changed, had the last update been made at another rate (hypergradient
        descent, Baydin et al. 2018, of a local rule).

        Args:
            spikes: Shape (B, T, pre), floating point.

        Returns:
            Current, shape (B, T, post).
        """
        weight = self.weight
        if self.log_rates is not None and torch.is_grad_enabled():
            factors = _factors(self.log_rates)
            weight = weight + ((factors / factors.detach() - 1).view(-1, 1, 1) * self.changes).sum(0)
        current = F.linear(spikes, weight) * self.scale
        inhibition = self.rule.inhibition(self.state)
        return current if inhibition is None else current - inhibition

    @torch.no_grad()
    def observe(self, pre: Tensor, post: Tensor) -> None:
        """Add the spikes of a micro-batch to what the next update is made of.

        Args:
            pre: What went in, shape (B, T, pre), of any type.
            post: What the neurons behind made of it, shape (B, T, post).

        Raises:
            ValueError: The shapes do not go together.
        """
        rows, columns = self.weight.shape
        if pre.dim() != 3 or pre.shape[-1] != columns or post.shape != (*pre.shape[:2], rows):
            raise ValueError(
                f"spikes must have the shapes (B, T, {columns}) and (B, T, {rows}), but got {tuple(pre.shape)} and "
                f"{tuple(post.shape)}. Give those in front of the synapses first, then those behind."
            )
        with torch.autocast(pre.device.type, enabled=False):
            sums = self.rule.sums(pre.to(self.weight.dtype), post.to(self.weight.dtype))
        for pending, value in zip(self.pending()[:3], sums, strict=True):
            pending += value
        self.pending_counts += self.pending_counts.new_tensor([len(pre), len(pre) * pre.shape[1]])

    def pending(self) -> list[Tensor]:
        """What was observed since the last update, to be summed over ranks in place: sums first, counts last."""
        names = ("potentiation", "depression", "activity", "counts")
        return [self.get_buffer(f"pending_{name}") for name in names]

    def discard(self) -> None:
        """Forget what was observed since the last update."""
        for pending in self.pending():
            pending.zero_()

    @torch.no_grad()
    def update(self) -> dict[str, float] | None:
        """Change the weights by what is pending, and forget that.

        Returns:
            The norm of the change as a share of that of the weights ("change"), 1 where `cap` cut it ("capped"), the
            mean weight, as a share of the largest ("weight"), how many weights are within 1 % of a bound, as a share of
            all ("bound"), and the rate of each term ("rate_" and its name). None if nothing is pending.

        Raises:
            ValueError: What was observed is not finite; the weights are as they were.
        """
        samples, steps = self.pending_counts.tolist()
        if not steps:
            return None
        potentiation, depression, activity = (pending / steps for pending in self.pending()[:3])
        state = self.rule.remember(self.state, activity, steps / samples)
        directions = self.rule.directions(potentiation, depression, state)
        rates = self._rates()
        change, terms, capped = self._bounded(torch.stack(directions) * rates.view(-1, 1, 1))
        weight = (self.weight + change).clamp(0, self.w_max)

        figures = {
            "change": change.norm() / self.weight.norm().clamp(min=torch.finfo(change.dtype).tiny),
            "capped": capped,
            "weight": weight.mean() / self.w_max,
            "bound": ((weight / self.w_max - 0.5).abs() >= 0.49).to(weight.dtype).mean(),
        } | {f"rate_{name}": rate for name, rate in zip(self.rule.terms, rates, strict=True)}
        told = dict(zip(figures, torch.stack(list(figures.values())).tolist(), strict=True))
        if not math.isfinite(told["change"]):
            raise ValueError("spikes must be finite, but got some that are not. Discard windows that were skipped.")

        self.weight.copy_(weight)
        self.state.copy_(state)
        if self.log_rates is not None:
            self.changes.copy_(terms)
        self.discard()
        return told

    def _rates(self) -> Tensor:
        """The rate of each term, as it is now."""
        if self.log_rates is None:
            return self.weight.new_full((len(self.rule.terms),), self.rate)
        return self.rate * _factors(self.log_rates)

    def _bounded(self, terms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keep an update that is the sum of terms, (terms, post, pre), within the bounds of weights and the cap.

        Returns:
            The update; its derivative by the log of each term's rate, same shape as the terms; whether it was capped.
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
        # The norm of a capped update no longer depends on the rates, its direction still does.
        direction = change / norm
        along = (terms * direction).sum((1, 2)) * capped
        terms = shrink * (terms - along.view(-1, 1, 1) * direction)
        return shrink * change, terms, capped.to(change.dtype)


def _factors(log_rates: Tensor) -> Tensor:
    """How much faster or slower than at the start, in 0.1..10."""
    return 10 ** log_rates.tanh()
