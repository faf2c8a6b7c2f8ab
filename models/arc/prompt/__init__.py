"""The prompt of a puzzle: features and a text of its demonstrations, read by a language model."""

from searchlight.models.arc.prompt.cache import VectorCache, puzzle_key
from searchlight.models.arc.prompt.encoder import Fuse, PromptEncoder
from searchlight.models.arc.prompt.features import FEATURES, puzzle_features
from searchlight.models.arc.prompt.language import HUB_ID, LanguageModel, load_language_model
from searchlight.models.arc.prompt.text import grids_text, rule_text

__all__ = [
    "FEATURES",
    "HUB_ID",
    "Fuse",
    "LanguageModel",
    "PromptEncoder",
    "VectorCache",
    "grids_text",
    "load_language_model",
    "puzzle_features",
    "puzzle_key",
    "rule_text",
]
