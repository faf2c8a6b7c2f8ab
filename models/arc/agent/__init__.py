"""The network that answers a query, its losses, and the free energy of its answers."""

from searchlight.models.arc.agent.grid_agent import PROPOSALS, GridAgent
from searchlight.models.arc.agent.losses import (
    PAD_WEIGHT,
    compute_cell_loss,
    compute_color_loss,
    compute_consistency,
    compute_layout_loss,
)
from searchlight.models.arc.agent.refinement import Reading, Refiner

__all__ = [
    "GridAgent",
    "PAD_WEIGHT",
    "PROPOSALS",
    "Reading",
    "Refiner",
    "compute_cell_loss",
    "compute_color_loss",
    "compute_consistency",
    "compute_layout_loss",
]
