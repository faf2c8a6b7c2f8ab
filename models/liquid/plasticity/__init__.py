"""Local plasticity rules, and synapses whose weights follow them instead of a gradient."""

from searchlight.models.liquid.plasticity.rules import BCM, RULES, Homeostatic, Pair, Rule, Sums, Triplet
from searchlight.models.liquid.plasticity.synapses import PlasticSynapses
from searchlight.models.liquid.plasticity.traces import compute_traces

__all__ = ["BCM", "RULES", "Homeostatic", "Pair", "PlasticSynapses", "Rule", "Sums", "Triplet", "compute_traces"]
