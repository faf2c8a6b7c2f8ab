"""Plasticity rules: the change of a weight from the spikes on both sides of a synapse.

A rule reads whole sequences with fixed weights. It sums potentiation and depression over samples and steps, with one
matrix product each, so that the result does not depend on how a batch is split. A rule's state is only used when an
update is applied.

B samples, T steps; spikes of N_pre and N_post neurons, shapes (B, T, N); weights and sums (N_post, N_pre). Times are
in steps, rates in spikes per step. A sequence starts without spikes.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from searchlight.models.liquid.plasticity.traces import compute_traces


class Sums(NamedTuple):
    """The results of a rule for a batch of sequences, summed over samples and steps.

    Attributes:
        potentiation: Evidence for stronger synapses, at least 0, shape (N_post, N_pre).
        depression: Evidence for weaker ones, at least 0, same shape.
        activity: The quantity whose running mean is the rule's state: shape (N_post,), or (0,) for a rule without one.
    """

    potentiation: Tensor
    depression: Tensor
    activity: Tensor


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """Base of all rules. Every constant must be at least 0, and every time constant above 0."""

    terms: ClassVar[tuple[str, str]] = ("potentiation", "depression")

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_time = field.name.startswith("tau_")
            if not math.isfinite(value) or value < 0 or (is_time and value == 0):
                raise ValueError(
                    f"{field.name} must be {'above' if is_time else 'at least'} 0, but got {value}. "
                    f"The default of {type(self).__name__} is {field.default}."
                )

    @abstractmethod
    def compute_sums(self, pre: Tensor, post: Tensor) -> Sums:
        """Compute the sums of spikes on both sides, shapes (B, T, N_pre) and (B, T, N_post)."""

    def start(self, post: int) -> list[float]:
        """Return the initial state of each of `post` neurons. It is empty for a rule without a state."""
        return []

    def remember(self, state: Tensor, activity: Tensor, steps: Tensor) -> Tensor:
        """Return the state after sequences of `steps` steps, of shape (), with the mean activity `activity`."""
        return state

    def compute_directions(self, potentiation: Tensor, depression: Tensor, state: Tensor) -> list[Tensor]:
        """Return the change of the weights by each of `terms`, given the means of the sums."""
        return [potentiation, -depression]

    def get_inhibition(self, state: Tensor) -> Tensor | None:
        """Return the inhibitory current of each neuron, or None."""
        return None


@dataclass(frozen=True, kw_only=True)
class Pair(Rule):
    """Pair STDP, all to all: pre before post adds A+ e^(-dt / tau+), post before pre subtracts A- e^(-dt / tau-).

    Two spikes in the same step change nothing. Bi and Poo 1998; Song, Miller and Abbott 2000: tau of 20 ms (here of 1
    ms per step), A+ of 0.005 and A- / A+ of 1.05.
    """

    a_plus: float = 0.005
    a_minus: float = 0.00525
    tau_plus: float = 20.0
    tau_minus: float = 20.0

    def compute_sums(self, pre: Tensor, post: Tensor) -> Sums:
        # With pre spikes x_j, post spikes y_i and their traces r_j, o_i of earlier steps (Morrison et al. 2008):
        #     dw_ij = sum_t A+ y_i(t) r_j(t) - A- o_i(t) x_j(t).
        # A trace already sums over all earlier spikes, so that no loop over pairs of spikes is needed.
        return Sums(
            self.a_plus * _correlate(post, compute_traces(pre, self.tau_plus)),
            self.a_minus * _correlate(compute_traces(post, self.tau_minus), pre),
            post.new_zeros(0),
        )


@dataclass(frozen=True, kw_only=True)
class Triplet(Rule):
    """Triplet STDP, all to all: a pair counts more if the neuron that completes it has spiked shortly before.

    A post spike adds r1 (A2+ + A3+ o2), a pre spike subtracts o1 (A2- + A3- r2); r1, r2 are the traces of pre (tau+,
    tau_x), o1, o2 those of post (tau-, tau_y), all of them before this step. Without A3 it is the pair rule. Pfister
    and Gerstner 2006. The defaults keep the magnitudes of the pair rule, so that rates are comparable. The paper's fit
    to visual cortex is a2_plus=5e-10, a3_plus=6.2e-3, a2_minus=7e-3, a3_minus=2.3e-4 with tau_plus=16.8,
    tau_minus=33.7, tau_x=101, tau_y=125, which strengthens nearly all synapses above 20 spikes in 1000 steps.
    """

    a2_plus: float = 0.005
    a2_minus: float = 0.00525
    a3_plus: float = 1e-4
    a3_minus: float = 1e-4
    tau_plus: float = 20.0
    tau_minus: float = 20.0
    tau_x: float = 101.0
    tau_y: float = 114.0

    def compute_sums(self, pre: Tensor, post: Tensor) -> Sums:
        strengthening = post * (self.a2_plus + self.a3_plus * compute_traces(post, self.tau_y))
        weakening = pre * (self.a2_minus + self.a3_minus * compute_traces(pre, self.tau_x))
        return Sums(
            _correlate(strengthening, compute_traces(pre, self.tau_plus)),
            _correlate(compute_traces(post, self.tau_minus), weakening),
            post.new_zeros(0),
        )


@dataclass(frozen=True, kw_only=True)
class Homeostatic(Pair):
    """Pair STDP, and a current that inhibits a neuron more while it spikes above its target, and less below.

    The current I acts as an adaptive threshold (Diehl and Cook 2015): each update adds k (r - r*) to it. Scaling the
    plastic weights would not suffice, since trained synapses can make a neuron spike at a weight of 0. The control must
    be faster than the plasticity, or the two oscillate (Zenke, Hennequin and Gerstner 2013).

    Attributes:
        strength: k. A neuron that spikes at each step is inhibited by its threshold of 1 within 1 / k updates.
        target: r*, in spikes per step.
    """

    strength: float = 0.2
    target: float = 0.1

    def compute_sums(self, pre: Tensor, post: Tensor) -> Sums:
        return super().compute_sums(pre, post)._replace(activity=post.sum((0, 1)))

    def start(self, post: int) -> list[float]:
        return [0.0] * post

    def remember(self, state: Tensor, activity: Tensor, steps: Tensor) -> Tensor:
        return state + self.strength * (activity - self.target)

    def get_inhibition(self, state: Tensor) -> Tensor:
        return state


@dataclass(frozen=True, kw_only=True)
class BCM(Rule):
    """BCM: dW = A x y (y - theta), with a threshold theta that follows the mean of y^2 / y0.

    x and y are rates, spikes smoothed over `tau` steps (for a spike itself, y^2 = y, and a threshold below 1 would
    never weaken a synapse). Nothing changes at y = theta, which a steady y reaches only at y = y0. Rates oscillate
    unless theta moves faster than the weights. Therefore, theta is updated first, and a larger learning rate needs a
    shorter `tau_theta`.

    Bienenstock, Cooper and Munro 1982; Intrator and Cooper 1992.

    Attributes:
        amplitude: A. At rates near 0.1, 1 changes weights about as much as the pair rule does.
        target: y0, in spikes per step.
        tau: Of the smoothing of x and y.
        tau_theta: Time constant of theta, in steps of a sequence. theta starts at the target.
    """

    amplitude: float = 1.0
    target: float = 0.1
    tau: float = 20.0
    tau_theta: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target == 0:
            raise ValueError("target must be above 0, but got 0. It is the rate that neurons settle at; 0.1 is usual.")

    def compute_sums(self, pre: Tensor, post: Tensor) -> Sums:
        x, y = self.compute_rates(pre), self.compute_rates(post)
        squared = y.square()
        return Sums(
            self.amplitude * _correlate(squared, x),
            self.amplitude * _correlate(y, x),
            squared.sum((0, 1)) / self.target,
        )

    def compute_rates(self, spikes: Tensor) -> Tensor:
        """Return exponentially weighted spikes per step up to each step, unbiased from the second step on."""
        # r_t = sum_n exp(-n / tau) s_{t-n} / sum_n exp(-n / tau) over the n = 1, 2, ... that the sequence has.
        weights = compute_traces(torch.ones_like(spikes[:1, :, :1]), self.tau)
        return compute_traces(spikes, self.tau) / weights.clamp(min=torch.finfo(weights.dtype).tiny)

    def start(self, post: int) -> list[float]:
        return [self.target] * post

    def remember(self, state: Tensor, activity: Tensor, steps: Tensor) -> Tensor:
        return _update_mean(state, activity, steps / self.tau_theta)

    def compute_directions(self, potentiation: Tensor, depression: Tensor, state: Tensor) -> list[Tensor]:
        return [potentiation, -state[:, None] * depression]


RULES: dict[str, type[Rule]] = {"pair": Pair, "triplet": Triplet, "homeostatic": Homeostatic, "bcm": BCM}


def _correlate(post: Tensor, pre: Tensor) -> Tensor:
    """Return the sum of the outer products of all samples and steps, shape (N_post, N_pre)."""
    return post.flatten(0, 1).T @ pre.flatten(0, 1)


def _update_mean(mean: Tensor, value: Tensor, time: Tensor) -> Tensor:
    """Return the exponential mean after `value` has lasted for `time` time constants."""
    return mean.lerp(value, -torch.expm1(-time))
