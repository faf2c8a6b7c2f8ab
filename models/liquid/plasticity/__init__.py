"""Local plasticity rules, and synapses whose weights follow them instead of a gradient."""

from models.liquid.plasticity.rules import BCM, RULES, Homeostatic, Pair, Rule, Sums, Triplet
from models.liquid.plasticity.synapses import PlasticSynapses
from models.liquid.plasticity.traces import traces

__all__ = ["BCM", "RULES", "Homeostatic", "Pair", "PlasticSynapses", "Rule", "Sums", "Triplet", "traces"]
