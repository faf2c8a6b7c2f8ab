"""Puzzles: their grids, sources, and the curriculum that draws them."""

from searchlight.models.arc.puzzles.contamination import check_disjoint, drop_leaked
from searchlight.models.arc.puzzles.curriculum import Curriculum
from searchlight.models.arc.puzzles.datasets import SOURCES, load_puzzles
from searchlight.models.arc.puzzles.puzzle import (
    COLORS,
    LARGEST_SIDE,
    Grid,
    Pair,
    Puzzle,
    count_objects,
    hash_puzzles,
    pack_grids,
    unpack_grids,
)
from searchlight.models.arc.puzzles.symmetries import SYMMETRIES, transform

__all__ = [
    "COLORS",
    "Curriculum",
    "Grid",
    "LARGEST_SIDE",
    "Pair",
    "Puzzle",
    "SOURCES",
    "SYMMETRIES",
    "check_disjoint",
    "count_objects",
    "drop_leaked",
    "hash_puzzles",
    "load_puzzles",
    "pack_grids",
    "transform",
    "unpack_grids",
]
