"""The operations of programs, by families. Each maps a grid to a grid, and none knows a puzzle's tests.

They were written with the public training puzzles of ARC-AGI-1 in mind. No evaluation puzzle was looked at.
"""

from searchlight.models.arc.programs.operations import (
    colors,
    completion,
    enclosed,
    fitted,
    neighborhoods,
    object_choices,
    object_maps,
    parts,
    rays,
    regions,
    scaling,
    symmetries,
)

FAMILIES = {
    "symmetries": symmetries.OPERATIONS,
    "regions": regions.OPERATIONS,
    "parts": parts.OPERATIONS,
    "object choices": object_choices.OPERATIONS,
    "object maps": object_maps.OPERATIONS,
    "enclosed areas": enclosed.OPERATIONS,
    "rays and gravity": rays.OPERATIONS,
    "neighborhoods": neighborhoods.OPERATIONS,
    "completion": completion.OPERATIONS,
    "colors": colors.OPERATIONS,
    "scaling": scaling.OPERATIONS,
    "fitted sizes": fitted.OPERATIONS,
}
OPERATIONS = tuple(operation for family in FAMILIES.values() for operation in family)

__all__ = ["FAMILIES", "OPERATIONS"]
