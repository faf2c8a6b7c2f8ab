"""Spiking neurons: leaky integrate-and-fire with surrogate gradients."""

from searchlight.models.liquid.spiking.lif import LIF
from searchlight.models.liquid.spiking.surrogate import SURROGATES, Surrogate

__all__ = ["LIF", "SURROGATES", "Surrogate"]
