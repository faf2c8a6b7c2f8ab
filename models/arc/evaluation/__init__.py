"""The evaluation of a solver: held-out demonstrations, votes of views, metrics, baselines and pictures."""

from searchlight.models.arc.evaluation.answers import Answers, EvaluationSet, answer_tests, prepare_evaluation
from searchlight.models.arc.evaluation.baselines import find_two_guesses, look_up, score_unlearned
from searchlight.models.arc.evaluation.metrics import compute_metrics, tally
from searchlight.models.arc.evaluation.rendering import Case, ProgramCase, draw, draw_programs, trace_program

__all__ = [
    "Answers",
    "Case",
    "EvaluationSet",
    "ProgramCase",
    "draw",
    "draw_programs",
    "trace_program",
    "look_up",
    "compute_metrics",
    "prepare_evaluation",
    "score_unlearned",
    "answer_tests",
    "tally",
    "find_two_guesses",
]
