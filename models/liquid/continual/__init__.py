"""Continual learning: streams of tasks, consolidation, replay, and the accuracy matrix."""

from searchlight.models.liquid.continual.accuracy_matrix import Matrix
from searchlight.models.liquid.continual.ewc import EWC
from searchlight.models.liquid.continual.fisher import drawn_direction, exact_directions, fisher_diagonal, random_signs
from searchlight.models.liquid.continual.plot import draw
from searchlight.models.liquid.continual.replay import Draw, Reservoir, der_loss
from searchlight.models.liquid.continual.scenario import (
    Scenario,
    allowed,
    class_groups,
    masked_logits,
    outputs,
    targets,
)
from searchlight.models.liquid.continual.si import SI

__all__ = [
    "EWC",
    "SI",
    "Draw",
    "Matrix",
    "Reservoir",
    "Scenario",
    "allowed",
    "class_groups",
    "der_loss",
    "draw",
    "drawn_direction",
    "exact_directions",
    "fisher_diagonal",
    "masked_logits",
    "outputs",
    "random_signs",
    "targets",
]
