"""ARC puzzles: their data, a grid model that answers them under prompts, a policy that refines these, and scores."""

from searchlight.models.arc.adaptation import Adaptation, pools_of
from searchlight.models.arc.agent import PROPOSALS, GridAgent
from searchlight.models.arc.attempts import View, all_attempts, read_views, two_attempts
from searchlight.models.arc.canvas import BORDER, FIRST_COLOUR, PAD, SYMBOLS, to_canvas, to_grid
from searchlight.models.arc.contamination import check_disjoint, without
from searchlight.models.arc.curriculum import Curriculum
from searchlight.models.arc.datasets import SOURCES, load_puzzles
from searchlight.models.arc.episodes import Batch, Episode, TestEpisodes, TrainingPool, rehearsals
from searchlight.models.arc.evaluation import Answers, Exam, prepare, sit
from searchlight.models.arc.losses import cell_loss
from searchlight.models.arc.metrics import metrics, tally
from searchlight.models.arc.policy import PromptPolicy
from searchlight.models.arc.puzzles import Grid, Puzzle, digest, from_arrays, to_arrays
from searchlight.models.arc.rendering import Case, draw
from searchlight.models.arc.solver import Solver, Weights
from searchlight.models.arc.unlearned import score_unlearned

__all__ = [
    "BORDER",
    "FIRST_COLOUR",
    "PAD",
    "PROPOSALS",
    "SOURCES",
    "SYMBOLS",
    "Adaptation",
    "Answers",
    "Batch",
    "Case",
    "Curriculum",
    "Episode",
    "Exam",
    "Grid",
    "GridAgent",
    "PromptPolicy",
    "Puzzle",
    "Solver",
    "TestEpisodes",
    "TrainingPool",
    "View",
    "Weights",
    "all_attempts",
    "cell_loss",
    "check_disjoint",
    "digest",
    "draw",
    "from_arrays",
    "load_puzzles",
    "metrics",
    "pools_of",
    "prepare",
    "read_views",
    "rehearsals",
    "score_unlearned",
    "sit",
    "tally",
    "to_arrays",
    "to_canvas",
    "to_grid",
    "two_attempts",
    "without",
]
