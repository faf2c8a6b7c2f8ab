"""The evaluation of a solver: held-out demonstrations, votes of views, metrics, baselines and pictures."""

from searchlight.models.arc.evaluation.adaptation import Adaptation, pools_of
from searchlight.models.arc.evaluation.answers import Answers, Exam, prepare, sit
from searchlight.models.arc.evaluation.baselines import look_up, score_unlearned, two_guesses
from searchlight.models.arc.evaluation.metrics import metrics, tally
from searchlight.models.arc.evaluation.rendering import Case, draw

__all__ = [
    "Adaptation",
    "Answers",
    "Case",
    "Exam",
    "draw",
    "look_up",
    "metrics",
    "pools_of",
    "prepare",
    "score_unlearned",
    "sit",
    "tally",
    "two_guesses",
]
