"""The prompt of a puzzle: a projection of what a language model reads in its text."""

from typing import cast

import torch
from torch import Tensor, nn

from searchlight.models.arc.prompt.language import LanguageModel


class PromptEncoder(nn.Module):
    """Projects a text's vector to a prompt.

    Args:
        hidden: Length of the language model's vectors.
        dim: Length of the prompt.
        language: A language model that is trained with the encoder and reads token ids. None: texts are the cached
            vectors of a frozen model.
    """

    def __init__(self, hidden: int, dim: int, language: LanguageModel | None = None) -> None:
        super().__init__()
        self.text = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, dim))
        self.norm = nn.LayerNorm(dim)
        self.language = language

    def forward(self, text: Tensor) -> Tensor:
        """Encode a batch.

        Args:
            text: Vectors of texts, float of shape (B, hidden). With a language model, token ids, integer of shape
                (B, L).

        Returns:
            Prompts, float32 of shape (B, dim), each of mean about 0 and variance about 1.
        """
        vectors = text if self.language is None else self.language(text)
        read = self.text(vectors.float())
        with torch.autocast(read.device.type, enabled=False):
            return cast(Tensor, self.norm(read.float()))
