"""The task `lm` at a size that trains in seconds on a CPU, on the reference of Python's language.

Searches see the loss on validation windows. A checkpoint is judged on test windows that no search sees.
"""

import functools
import hashlib
import itertools
import math
from typing import Literal

import numpy as np
import torch

from searchlight.models.liquid.data.corpus import DOMAINS
from searchlight.trainables.lm.config import LmConfig
from searchlight.trainables.lm.data import Corpus
from searchlight.trainables.lm.task import LmTask
from searchlight.trainables.task import searchable

BYTES, TRAINED = 300_000, 270_000  # of the reference, and of its training part
WINDOWS = 96  # of validation and test together


class SmallLmConfig(LmConfig):
    lr: float = searchable(5e-3, low=3e-4, high=0.3, log=True)
    embedding_lr: float = searchable(1e-2, low=1e-3, high=1.0, log=True)
    weight_decay: float = searchable(0.1, low=1e-3, high=1.0, log=True)
    warmup: float = searchable(0.05, low=0.0, high=0.4)
    batch_size: int = searchable(16, choices=[8, 16, 32])
    optimizer: Literal["adamw", "muon"] = "adamw"
    width: int = 32
    depth: int = 1
    heads: int = 2
    length: int = 32
    samples: int = 64
    epochs: int = 27


class SmallLm(LmTask):
    """A language model of the first BYTES of the reference of Python's language, in 27 epochs of 2 KiB."""

    def build(self) -> None:
        self.context.cache(f"corpus {self.config.data}", load_reference)  # which LmTask takes instead of its own
        super().build()

    def evaluate(self) -> dict[str, float | tuple[float, float]]:
        """Return the bits per byte of validation and test windows, which alternate in the held-out bytes."""
        length, held_out = self.config.length, self.corpus.test
        starts = torch.linspace(0, len(held_out) - length - 1, WINDOWS).long()
        losses, _ = self._measure(held_out[starts[:, None] + torch.arange(length + 1)])
        bits = losses.mean(1) / math.log(2)
        return {"val/bpb": bits[::2].mean().item(), "test/bpb": bits[1::2].mean().item()}


@functools.cache
def load_reference() -> Corpus:
    """Return the corpus without the baseline of LmTask, which would take longer than a training."""
    text = b"".join(itertools.islice(DOMAINS["english"](), 10**6))[:BYTES]
    tokens = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
    return Corpus(tokens[:TRAINED], tokens[TRAINED:], hashlib.sha256(text).hexdigest(), math.nan)
