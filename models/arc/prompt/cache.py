"""A cache of text vectors: a frozen language model always gives the same vector for a text."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from searchlight.models.arc.prompt.language import LanguageModel
from searchlight.models.arc.puzzles import Grid, Pair
from searchlight.models.data.atomic_file import open_atomic

BATCH = 8
LENGTHS = 16


def hash_puzzle(demonstrations: Sequence[Pair], query: Grid) -> str:
    """Return the SHA-256 of a puzzle's demonstrations and of the query's input, 64 hexadecimal digits."""
    sha = hashlib.sha256()
    for grid in (query, *(grid for pair in demonstrations for grid in pair)):
        sha.update(f"{grid.shape[0]} {grid.shape[1]}\n".encode())
        sha.update(np.ascontiguousarray(grid).tobytes())
    return sha.hexdigest()


class VectorCache:
    """A cache of vectors by puzzle, text, and the name and revision of the language model.

    Args:
        folder: The folder that keeps vectors for other processes and later runs. None: keep them in memory only.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._known: dict[str, Tensor] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def get_vectors(self, keys: Sequence[str], texts: Sequence[str], language: LanguageModel) -> Tensor:
        """Return the vectors of texts. Compute those that are not in the cache.

        Args:
            keys: A `hash_puzzle` for each text.
            texts: The texts.
            language: A frozen language model.

        Returns:
            The vectors, float32 of shape (N, hidden) on the CPU, without gradient.

        Raises:
            ValueError: The model is trainable, so that its vectors change with each update.
        """
        if language.trainable:
            raise ValueError(
                "language must be frozen for its vectors to be kept, but got a trainable model. "
                "Give the encoder token ids instead."
            )
        entries = [_hash_entry(key, text, language) for key, text in zip(keys, texts, strict=True)]
        missing = {
            entry: text for entry, text in zip(entries, texts, strict=True) if not self._has(entry, language.hidden)
        }
        if missing:
            computed = read_texts(list(missing.values()), language)
            for entry, vector in zip(missing, computed, strict=True):
                self._keep(entry, vector)
        if not entries:
            return torch.zeros(0, language.hidden)
        return torch.stack([self._known[entry] for entry in entries])

    def _has(self, entry: str, hidden: int) -> bool:
        if entry not in self._known and self._folder is not None:
            vector = _load(self._folder / f"{entry}.npy", hidden)
            if vector is not None:
                self._known[entry] = vector
        return entry in self._known

    def _keep(self, entry: str, vector: Tensor) -> None:
        self._known[entry] = vector.clone()
        if self._folder is None:
            return
        with open_atomic(self._folder / f"{entry}.npy") as file:
            np.save(file, vector.numpy(), allow_pickle=False)


def read_texts(texts: Sequence[str], language: LanguageModel) -> Tensor:
    """Return the vectors of texts, float32 of shape (N, hidden) on the CPU, without gradients.

    Texts of similar length form batches of one size, padded with copies and empty positions. The vector of a text is
    therefore bit for bit independent of the other texts.
    """
    ids = [language.tokenize([text])[0] for text in texts]
    lengths = [-(-len(row) // LENGTHS) * LENGTHS for row in ids]
    vectors = torch.empty(len(texts), language.hidden)
    for length in sorted(set(lengths)):
        places = [place for place, own in enumerate(lengths) if own == length]
        for start in range(0, len(places), BATCH):
            chosen = places[start : start + BATCH]
            batch = torch.full((BATCH, length), -1)
            for index in range(BATCH):
                row = ids[chosen[min(index, len(chosen) - 1)]]
                batch[index, : len(row)] = row
            with torch.no_grad():
                vectors[chosen] = language(batch.to(language.device))[: len(chosen)].cpu()
    return vectors


def _hash_entry(key: str, text: str, language: LanguageModel) -> str:
    # The text itself stands for its kind, and for the wording, which may change from one version to the next.
    # Other devices and formats round otherwise.
    number = f"{language.device.type} {next(language.parameters()).dtype}"
    parts = (key, text, language.name, language.revision, str(language.max_tokens), number)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _load(file: Path, hidden: int) -> Tensor | None:
    """Return a vector from disk, or None if the file is missing or cannot be used. It is then computed again."""
    try:
        vector = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    if not isinstance(vector, np.ndarray) or vector.dtype != np.float32 or vector.shape != (hidden,):
        return None
    return torch.from_numpy(vector) if np.isfinite(vector).all() else None
