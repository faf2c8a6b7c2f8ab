"""The prompt of an episode: what a language model reads in its text, fused with what can be counted."""

from typing import cast

import torch
from torch import Tensor, nn

from searchlight.models.arc.prompt.features import FEATURES
from searchlight.models.arc.prompt.language import LanguageModel


class PromptEncoder(nn.Module):
    """Fuses a text with the features of its puzzle, by learned weights of both for each dimension and episode.

    Args:
        hidden: Length of the language model's vectors.
        dim: Length of the prompt.
        language: A language model that is trained with the encoder and reads token ids. None: texts are the cached
            vectors of a frozen model.
    """

    def __init__(self, hidden: int, dim: int = 256, language: LanguageModel | None = None) -> None:
        super().__init__()
        self.text = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, dim))
        self.features = nn.Sequential(nn.Linear(len(FEATURES), dim), nn.GELU(), nn.Linear(dim, dim))
        self.mix = nn.Linear(2 * dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.language = language

    def forward(self, text: Tensor, features: Tensor) -> Tensor:
        """Encode a batch.

        Args:
            text: Vectors of texts, float of shape (B, hidden). With a language model, token ids, integer of shape
                (B, L).
            features: See `compute_puzzle_features`, shape (B, 15).

        Returns:
            Prompts, float32 of shape (B, dim), each of mean about 0 and variance about 1.
        """
        vectors = text if self.language is None else self.language(text)
        read = self.text(vectors.float())
        counted = self.features(features)
        gate = torch.sigmoid(self.mix(torch.cat([read, counted], dim=1)).float())
        fused = gate * read.float() + (1 - gate) * counted.float()
        with torch.autocast(fused.device.type, enabled=False):
            return cast(Tensor, self.norm(fused.float()))
