"""Synapses whose weights follow the spikes on both sides instead of a gradient."""

from searchlight.models.liquid.plasticity.stdp import compute_traces, sum_pairs
from searchlight.models.liquid.plasticity.synapses import PlasticSynapses

__all__ = ["PlasticSynapses", "compute_traces", "sum_pairs"]
