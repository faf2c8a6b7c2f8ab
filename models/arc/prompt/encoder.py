"""The prompt of an episode: what a language model reads in its text, fused with what can be counted."""

from collections.abc import Callable
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from searchlight.models.arc.prompt.features import FEATURES
from searchlight.models.arc.prompt.language import LanguageModel

Fuse = Literal["gate", "concat", "mean"]


class PromptEncoder(nn.Module):
    """Fuses a text with the features of its puzzle.

    Three ways to train: the projections alone, on cached vectors of a frozen model; a soft prefix as well
    (Lester et al. 2021, arXiv 2104.08691), whose gradients come through the frozen model; or the whole
    model. A frozen model is no part of `state_dict` and `parameters`, though it moves to other devices with
    the encoder.

    Args:
        hidden: Length of the language model's vectors.
        dim: Length of the prompt.
        fuse: "mean" weighs both halves equally, "gate" by learned ones for each dimension and
            episode, "concat" maps both together.
        prefix: Number of trained embeddings before each text.
        language: The model that reads token ids; none is needed for cached vectors.
        trainable: Whether the language model is trained.

    Raises:
        ValueError: The arguments do not fit together.
    """

    def __init__(
        self,
        hidden: int,
        dim: int = 256,
        fuse: Fuse = "gate",
        prefix: int = 0,
        language: LanguageModel | None = None,
        trainable: bool = False,
    ) -> None:
        super().__init__()
        _check(hidden, fuse, prefix, language, trainable)
        self.fuse = fuse
        self.text = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, dim))
        self.features = nn.Sequential(nn.Linear(len(FEATURES), dim), nn.GELU(), nn.Linear(dim, dim))
        self.mix = None if fuse == "mean" else nn.Linear(2 * dim, dim)
        self.norm = nn.LayerNorm(dim)
        # In a tuple it is no module of this one.
        self._frozen = (language,) if language is not None and not trainable else ()
        self.language = language if trainable else None
        self.prefix = None
        if language is not None and prefix:
            self.prefix = nn.Parameter(language.measure_embedding_scale() * torch.randn(prefix, hidden))

    @property
    def needs_ids(self) -> bool:
        """Return whether texts must come as token ids: vectors would leave something without gradients."""
        return self.language is not None or self.prefix is not None

    def forward(self, text: Tensor, features: Tensor) -> Tensor:
        """Encode a batch.

        Args:
            text: Vectors of texts, float of shape (B, hidden); or token ids, integer of shape (B, L), which
                the language model reads.
            features: See `compute_puzzle_features`, shape (B, 15).

        Returns:
            Prompts, float32 of shape (B, dim), each of mean about 0 and variance about 1.
        """
        read = self.text(self._read(text).float())
        counted = self.features(features)
        if self.mix is None:
            fused = 0.5 * read.float() + 0.5 * counted.float()
        elif self.fuse == "concat":
            fused = self.mix(torch.cat([read, counted], dim=1))
        else:
            gate = torch.sigmoid(self.mix(torch.cat([read, counted], dim=1)).float())
            fused = gate * read.float() + (1 - gate) * counted.float()
        with torch.autocast(fused.device.type, enabled=False):
            return cast(Tensor, self.norm(fused.float()))

    def _read(self, text: Tensor) -> Tensor:
        if text.is_floating_point():
            if self.needs_ids:
                raise ValueError(
                    "text must be token ids where the language model or a prefix is trained, but got vectors. "
                    "Give what LanguageModel.tokenize returns."
                )
            return text
        language = self.language if self.language is not None else next(iter(self._frozen), None)
        if language is None:
            raise ValueError(
                "text must be vectors where the encoder has no language model, but got token ids. "
                "Give what VectorCache.vectors returns."
            )
        return cast(Tensor, language(text, self.prefix))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "PromptEncoder":
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for language in self._frozen:
            # It follows to the device, and keeps its dtype.
            language.to(self.norm.weight.device)
        return self


def _check(hidden: int, fuse: str, prefix: int, language: LanguageModel | None, trainable: bool) -> None:
    if fuse not in get_args(Fuse):
        raise ValueError(f"fuse must be one of {', '.join(get_args(Fuse))}, but got {fuse!r}. Choose one of them.")
    if prefix < 0 or (prefix and language is None):
        raise ValueError(
            f"prefix must be 0 without a language model and at least 0 with one, but got {prefix}. Give a model."
        )
    if trainable != (language is not None and language.trainable):
        raise ValueError(
            f"trainable must say whether the language model was loaded to be trained, but got {trainable}. "
            "Load it with the same value."
        )
    if language is not None and language.hidden != hidden:
        raise ValueError(
            f"hidden must be the language model's {language.hidden}, but got {hidden}. Pass language.hidden."
        )
