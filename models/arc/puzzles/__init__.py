"""Puzzles: their grids and canvases, sources, guesses without learning, and the episodes that are trained on."""

from searchlight.models.arc.puzzles.canvas import (
    BORDER,
    FIRST_COLOR,
    PAD,
    SYMBOLS,
    compute_cell_accuracies,
    compute_cell_accuracy,
    draw_canvases,
    find_likeliest_sizes,
    measure_extents,
    read_grid,
)
from searchlight.models.arc.puzzles.contamination import check_disjoint, drop_leaked
from searchlight.models.arc.puzzles.curriculum import Curriculum
from searchlight.models.arc.puzzles.datasets import SOURCES, load_puzzles
from searchlight.models.arc.puzzles.episodes import Batch, Episode, TestEpisodes, TrainingPool, hold_out_demonstrations
from searchlight.models.arc.puzzles.generators.families import EASY
from searchlight.models.arc.puzzles.guesses import GUESSES, guess_outputs, guess_sizes, measure_agreement
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
from searchlight.models.arc.puzzles.symmetries import SYMMETRIES, invert_symmetry, transform

__all__ = [
    "BORDER",
    "Batch",
    "COLORS",
    "Curriculum",
    "EASY",
    "Episode",
    "FIRST_COLOR",
    "GUESSES",
    "Grid",
    "LARGEST_SIDE",
    "PAD",
    "Pair",
    "Puzzle",
    "SOURCES",
    "SYMBOLS",
    "SYMMETRIES",
    "TestEpisodes",
    "TrainingPool",
    "measure_agreement",
    "compute_cell_accuracies",
    "compute_cell_accuracy",
    "check_disjoint",
    "count_objects",
    "hash_puzzles",
    "measure_extents",
    "unpack_grids",
    "guess_outputs",
    "guess_sizes",
    "invert_symmetry",
    "find_likeliest_sizes",
    "load_puzzles",
    "hold_out_demonstrations",
    "pack_grids",
    "draw_canvases",
    "read_grid",
    "transform",
    "drop_leaked",
]
