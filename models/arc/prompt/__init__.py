"""The prompt of a puzzle: a text of its demonstrations, read by a language model."""

from searchlight.models.arc.prompt.cache import VectorCache, hash_puzzle
from searchlight.models.arc.prompt.encoder import PromptEncoder
from searchlight.models.arc.prompt.language import HUB_ID, LanguageModel, load_language_model
from searchlight.models.arc.prompt.text import describe_rule, format_grids

__all__ = [
    "HUB_ID",
    "LanguageModel",
    "PromptEncoder",
    "VectorCache",
    "format_grids",
    "load_language_model",
    "hash_puzzle",
    "describe_rule",
]
