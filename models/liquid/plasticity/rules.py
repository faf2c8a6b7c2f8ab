"""Rules of plasticity: what the spikes on both sides of a synapse say about its weight.

A rule reads whole sequences at once, with the weights held fixed. It sums what speaks for a stronger and what
speaks for a weaker synapse over samples and steps, one matrix product each, so that it does not matter how a
batch is cut or shared out. What depends on a state comes in only when an update is applied.

B samples, T steps; spikes of N_pre and N_post neurons, shapes (B, T, N); weights and sums (N_post, N_pre). Times
are in steps, rates in spikes per step. A sequence starts from silence.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from models.liquid.plasticity.traces import traces


class Sums(NamedTuple):
    """What a rule makes of a batch of sequences, summed over samples and steps.

    Attributes:
        potentiation: What speaks for stronger synapses, at least 0, shape (N_post, N_pre).
        depression: What speaks for weaker ones, at least 0, same shape.
        activity: What the rule's state is the running mean of: shape (N_post,), or (0,) for a rule without any.
    """

    potentiation: Tensor
    depression: Tensor
    activity: Tensor


@dataclass(frozen=True, kw_only=True)
class Rule(ABC):
    """Base of all rules; every constant must be at least 0, and every time constant above."""

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
    def sums(self, pre: Tensor, post: Tensor) -> Sums:
        """Read spikes on both sides, shapes (B, T, N_pre) and (B, T, N_post)."""

    def start(self, post: int) -> list[float]:
        """The state of each of `post` neurons before anything was seen; empty for a rule without a state."""
        return []

    def remember(self, state: Tensor, activity: Tensor, steps: float) -> Tensor:
        """The state after sequences of `steps` steps, in which the mean activity was `activity`."""
        return state

    def directions(self, potentiation: Tensor, depression: Tensor, state: Tensor) -> list[Tensor]:
        """Where each of `terms` moves the weights, given the means of the sums; same shape as the weights."""
        return [potentiation, -depression]

    def inhibition(self, state: Tensor) -> Tensor | None:
        """The current that each neuron gets less than its synapses pass on; None: nothing is taken away."""
        return None


@dataclass(frozen=True, kw_only=True)
class Pair(Rule):
    """Pair STDP, all to all: pre before post adds A+ e^(-dt / tau+), post before pre takes A- e^(-dt / tau-).

    Two spikes in the same step change nothing. Bi and Poo 1998; Song, Miller and Abbott 2000: tau of 20 ms (here
    of 1 ms each), A+ of 0.005 and A- / A+ of 1.05.
    """

    a_plus: float = 0.005
    a_minus: float = 0.00525
    tau_plus: float = 20.0
    tau_minus: float = 20.0

    def sums(self, pre: Tensor, post: Tensor) -> Sums:
        return Sums(
            self.a_plus * _correlation(post, traces(pre, self.tau_plus)),
            self.a_minus * _correlation(traces(post, self.tau_minus), pre),
            post.new_zeros(0),
        )


@dataclass(frozen=True, kw_only=True)
class Triplet(Rule):
    """Triplet STDP, all to all: a pair counts for more where the neuron that completes it has just spiked before.

    A post spike adds r1 (A2+ + A3+ o2), a pre spike takes o1 (A2- + A3- r2); r1, r2 are the traces of pre (tau+,
    tau_x), o1, o2 those of post (tau-, tau_y), all of them before this step. Without the A3 it is the pair rule.

    Pfister and Gerstner 2006. The defaults keep the pair rule's sizes, so that rates compare; the paper's fit to
    visual cortex is a2_plus=5e-10, a3_plus=6.2e-3, a2_minus=7e-3, a3_minus=2.3e-4 with tau_plus=16.8, tau_minus=33.7,
    tau_x=101, tau_y=125, which strengthens nearly everything above 20 spikes in 1000 steps.
    """

    a2_plus: float = 0.005
    a2_minus: float = 0.00525
    a3_plus: float = 1e-4
    a3_minus: float = 1e-4
    tau_plus: float = 20.0
    tau_minus: float = 20.0
    tau_x: float = 101.0
    tau_y: float = 114.0

    def sums(self, pre: Tensor, post: Tensor) -> Sums:
        strengthening = post * (self.a2_plus + self.a3_plus * traces(post, self.tau_y))
        weakening = pre * (self.a2_minus + self.a3_minus * traces(pre, self.tau_x))
        return Sums(
            _correlation(strengthening, traces(pre, self.tau_plus)),
            _correlation(traces(post, self.tau_minus), weakening),
            post.new_zeros(0),
        )


@dataclass(frozen=True, kw_only=True)
class Homeostatic(Pair):
    """Pair STDP, and a current that inhibits a neuron more while it spikes above its target, and less while below.

    The current I is what an adaptive threshold is (Diehl and Cook 2015): each update adds k (r - r*) to it. To scale
    the plastic weights instead would not do: a neuron that its trained synapses drive spikes at a weight of 0, too. The
    control has to be quick beside the plasticity, or the two oscillate (Zenke, Hennequin and Gerstner 2013).

    Attributes:
        strength: k, so that a neuron that spikes at each step is inhibited by its threshold of 1 within 1 / k updates.
        target: r*, in spikes per step.
    """

    strength: float = 0.2
    target: float = 0.1

    def sums(self, pre: Tensor, post: Tensor) -> Sums:
        return super().sums(pre, post)._replace(activity=post.sum((0, 1)))

    def start(self, post: int) -> list[float]:
        return [0.0] * post

    def remember(self, state: Tensor, activity: Tensor, steps: float) -> Tensor:
        return state + self.strength * (activity - self.target)

    def inhibition(self, state: Tensor) -> Tensor:
        return state


@dataclass(frozen=True, kw_only=True)
class BCM(Rule):
    """BCM: dW = A x y (y - theta), with a threshold theta that slides with the mean of y^2 / y0.

    x and y are rates, spikes smoothed over `tau` steps (of a spike itself, y^2 = y, and no threshold below 1 would
    ever weaken anything). At y = theta nothing changes, which for a steady y is so at y = y0 alone. Rates oscillate
    unless theta moves faster than the weights: theta is moved first, the weights then see the new one, and a larger
    learning rate needs a shorter `tau_theta`.

    Bienenstock, Cooper and Munro 1982; Intrator and Cooper 1992.

    Attributes:
        amplitude: A; 1 moves weights about as far as the pair rule does, at rates near 0.1.
        target: y0, in spikes per step.
        tau: Of the smoothing of x and y.
        tau_theta: Memory of theta, in steps of a sequence; theta starts at the target.
    """

    amplitude: float = 1.0
    target: float = 0.1
    tau: float = 20.0
    tau_theta: float = 100.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target == 0:
            raise ValueError("target must be above 0, but got 0. It is the rate that neurons settle at; 0.1 is usual.")

    def sums(self, pre: Tensor, post: Tensor) -> Sums:
        x, y = self.rates(pre), self.rates(post)
        squared = y.square()
        return Sums(
            self.amplitude * _correlation(squared, x),
            self.amplitude * _correlation(y, x),
            squared.sum((0, 1)) / self.target,
        )

    def rates(self, spikes: Tensor) -> Tensor:
        """Spikes per step so far, the latest weighing the most; unbiased from the second step on."""
        weights = traces(torch.ones_like(spikes[:1, :, :1]), self.tau)
        return traces(spikes, self.tau) / weights.clamp(min=torch.finfo(weights.dtype).tiny)

    def start(self, post: int) -> list[float]:
        return [self.target] * post

    def remember(self, state: Tensor, activity: Tensor, steps: float) -> Tensor:
        return _running_mean(state, activity, steps / self.tau_theta)

    def directions(self, potentiation: Tensor, depression: Tensor, state: Tensor) -> list[Tensor]:
        return [potentiation, -state[:, None] * depression]


RULES: dict[str, type[Rule]] = {"pair": Pair, "triplet": Triplet, "homeostatic": Homeostatic, "bcm": BCM}


def _correlation(post: Tensor, pre: Tensor) -> Tensor:
    """Sum of the outer products of every sample and step, (N_post, N_pre)."""
    return post.flatten(0, 1).T @ pre.flatten(0, 1)


def _running_mean(mean: Tensor, value: Tensor, time: float) -> Tensor:
    """The exponential mean after `value` has held for `time` time constants."""
    return mean.lerp(value, -math.expm1(-time))
