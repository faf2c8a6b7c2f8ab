"""Continual learning: streams of tasks, consolidation, replay, and the accuracy matrix."""

from searchlight.models.liquid.continual.accuracy_matrix import Matrix
from searchlight.models.liquid.continual.ewc import EWC
from searchlight.models.liquid.continual.fisher import (
    compute_directions,
    draw_direction,
    draw_signs,
    sum_squared_gradients,
)
from searchlight.models.liquid.continual.plot import draw_matrix
from searchlight.models.liquid.continual.replay import Draw, Reservoir, compute_der_loss
from searchlight.models.liquid.continual.scenario import (
    Scenario,
    convert_labels,
    count_outputs,
    find_allowed,
    group_classes,
    mask_logits,
)
from searchlight.models.liquid.continual.si import SI

__all__ = [
    "EWC",
    "SI",
    "Draw",
    "Matrix",
    "Reservoir",
    "Scenario",
    "find_allowed",
    "group_classes",
    "compute_der_loss",
    "draw_matrix",
    "draw_direction",
    "compute_directions",
    "sum_squared_gradients",
    "mask_logits",
    "count_outputs",
    "draw_signs",
    "convert_labels",
]
