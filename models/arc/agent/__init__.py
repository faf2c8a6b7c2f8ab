"""The network that answers a query, its losses, and the free energy of its answers."""

from searchlight.models.arc.agent.grid_agent import PROPOSALS, GridAgent
from searchlight.models.arc.agent.losses import PAD_WEIGHT, cell_loss, colour_loss, consistency, layout_loss
from searchlight.models.arc.agent.refinement import Reading, Refiner

__all__ = [
    "GridAgent",
    "PAD_WEIGHT",
    "PROPOSALS",
    "Reading",
    "Refiner",
    "cell_loss",
    "colour_loss",
    "consistency",
    "layout_loss",
]
