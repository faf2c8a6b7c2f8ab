"""The evaluation of a policy: the results of programs, attempts at tests, scores and pictures."""

from searchlight.models.arc.evaluation.metrics import compute_scores, find_hits
from searchlight.models.arc.evaluation.puzzle_set import PuzzleSet, prepare_puzzle_set
from searchlight.models.arc.evaluation.rendering import Case, ProgramCase, draw, draw_programs, trace_program

__all__ = [
    "Case",
    "ProgramCase",
    "PuzzleSet",
    "compute_scores",
    "draw",
    "draw_programs",
    "find_hits",
    "prepare_puzzle_set",
    "trace_program",
]
