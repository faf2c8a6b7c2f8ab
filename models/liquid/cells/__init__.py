"""Recurrent cells in continuous time.

All have the same interface: `outputs, state = cell(x, state, dt)` with inputs (B, T, F), outputs (B, T, outputs),
state (B, state_size) or None for zeros, and the time that each step takes (B, T, 1) or None for steps of 1.
"""

from collections.abc import Callable

from searchlight.models.liquid.cells.cell import Cell
from searchlight.models.liquid.cells.cfc import CfC
from searchlight.models.liquid.cells.ncp import NCP
from searchlight.models.liquid.cells.scan import Liquid, run_linear_scan

CELLS: dict[str, Callable[[int, int], Cell]] = {
    "cfc": CfC,
    "liquid": Liquid,
    "ncp": NCP,
}


__all__ = ["CELLS", "Cell", "CfC", "Liquid", "NCP", "run_linear_scan"]
