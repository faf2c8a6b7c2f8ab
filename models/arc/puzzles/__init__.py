"""Puzzles: their grids and canvases, sources, guesses without learning, and the episodes that are trained on."""

from searchlight.models.arc.puzzles.canvas import (
    BORDER,
    FIRST_COLOUR,
    PAD,
    SYMBOLS,
    cell_accuracies,
    cell_accuracy,
    extents,
    likeliest_sizes,
    to_canvases,
    to_grid,
)
from searchlight.models.arc.puzzles.contamination import check_disjoint, without
from searchlight.models.arc.puzzles.curriculum import Curriculum
from searchlight.models.arc.puzzles.datasets import SOURCES, load_puzzles
from searchlight.models.arc.puzzles.episodes import Batch, Episode, TestEpisodes, TrainingPool, rehearsals
from searchlight.models.arc.puzzles.generators.families import EASY
from searchlight.models.arc.puzzles.guesses import GUESSES, agreement, guess_outputs, guess_sizes
from searchlight.models.arc.puzzles.puzzle import (
    COLOURS,
    LARGEST_SIDE,
    Grid,
    Pair,
    Puzzle,
    count_objects,
    digest,
    from_arrays,
    to_arrays,
)
from searchlight.models.arc.puzzles.symmetries import SYMMETRIES, inverse_symmetry, transform

__all__ = [
    "BORDER",
    "Batch",
    "COLOURS",
    "Curriculum",
    "EASY",
    "Episode",
    "FIRST_COLOUR",
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
    "agreement",
    "cell_accuracies",
    "cell_accuracy",
    "check_disjoint",
    "count_objects",
    "digest",
    "extents",
    "from_arrays",
    "guess_outputs",
    "guess_sizes",
    "inverse_symmetry",
    "likeliest_sizes",
    "load_puzzles",
    "rehearsals",
    "to_arrays",
    "to_canvases",
    "to_grid",
    "transform",
    "without",
]
