"""ARC puzzles: their data, a grid model that answers them under prompts, a policy that refines these, and scores."""

from models.arc.adaptation import Adaptation, pools_of
from models.arc.agent import PROPOSALS, GridAgent
from models.arc.attempts import View, all_attempts, read_views, two_attempts
from models.arc.augment import Augmentation
from models.arc.canvas import BORDER, FIRST_COLOUR, PAD, SYMBOLS, to_canvas, to_grid
from models.arc.contamination import check_disjoint, without
from models.arc.curriculum import Curriculum
from models.arc.datasets import SOURCES, load_puzzles
from models.arc.episodes import Batch, Episode, TestEpisodes, TrainingPool, rehearsals
from models.arc.evaluation import Answers, Exam, prepare, sit
from models.arc.losses import cell_loss
from models.arc.metrics import metrics, tally
from models.arc.policy import PromptPolicy
from models.arc.puzzles import Grid, Puzzle, digest, from_arrays, to_arrays
from models.arc.rendering import Case, draw
from models.arc.solver import Solver, Weights
from models.arc.unlearned import score_unlearned

__all__ = [
    "BORDER",
    "FIRST_COLOUR",
    "PAD",
    "PROPOSALS",
    "SOURCES",
    "SYMBOLS",
    "Adaptation",
    "Answers",
    "Augmentation",
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
