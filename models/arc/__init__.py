"""In-context grid models for ARC-AGI-1 puzzles: data, agent, loss and scores."""

from models.arc.agent import GridAgent
from models.arc.attempts import View, all_attempts, read_views, two_attempts
from models.arc.augment import Augmentation
from models.arc.canvas import BORDER, FIRST_COLOUR, PAD, SYMBOLS, to_canvas, to_grid
from models.arc.examples import Batch, TestEpisodes, TrainingPool
from models.arc.losses import cell_loss
from models.arc.puzzles import Grid, Puzzle, digest, from_arrays, to_arrays
from models.arc.scoring import metrics, tally
from models.arc.sources import load_puzzles

__all__ = [
    "BORDER",
    "FIRST_COLOUR",
    "PAD",
    "SYMBOLS",
    "Augmentation",
    "Batch",
    "Grid",
    "GridAgent",
    "Puzzle",
    "TestEpisodes",
    "TrainingPool",
    "View",
    "all_attempts",
    "cell_loss",
    "digest",
    "from_arrays",
    "load_puzzles",
    "metrics",
    "read_views",
    "tally",
    "to_arrays",
    "to_canvas",
    "to_grid",
    "two_attempts",
]
