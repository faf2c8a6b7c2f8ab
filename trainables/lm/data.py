"""The corpora of the task `lm`."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from searchlight.models.data import Source, build_corpus, compute_bits_per_byte, read_corpus
from searchlight.models.data.text import build_bytes_source, check_corpus, check_size
from searchlight.trainables.task.config import renamed_errors

CORPUS = "corpus"
TEXT = "text"
COUNTED = 2**24  # last bytes of the training part for the baseline, which must fit in memory
ORDERS = 5


class Corpus(NamedTuple):
    """The training and test bytes of a corpus, with its domains concatenated.

    Attributes:
        train: The first 90 % of each domain, (n,) uint8.
        test: The rest of each domain, (m,) uint8.
        digest: SHA-256 of both.
        baseline: Bits per byte of a 5-gram model on `test`.
    """

    train: Tensor
    test: Tensor
    digest: str
    baseline: float


def resolve_data(data: str) -> str:
    """Return `data` as an absolute path, since workers run in another folder. `text` stays as it is.

    Raises:
        ValueError: There is no such file or folder.
    """
    if data == TEXT:
        return data
    path = Path(data).expanduser().absolute()
    if not data or not path.exists():
        raise ValueError(
            f"must be {TEXT}, a file, or a folder with .txt files, but got {data!r}: there is no such file or folder."
        )
    return str(path)


def check(data: str, length: int) -> None:
    """Check before a search that the data is long enough for sequences of `length` bytes.

    Raises:
        ValueError: The data is too short.
    """
    if data == TEXT:
        return  # it does not exist yet
    path = Path(data)
    with renamed_errors({"source must": "data must"}):
        if path.is_dir():
            check_corpus(path, length)
        else:
            check_size(path.name, path.stat().st_size, length)


def write_corpus(files: Path) -> None:
    """Write the corpus of `data=text` to the folder `files`, from text on this machine."""
    build_corpus(files / CORPUS)


def read(data: str, files: Path) -> Corpus:
    """Return the corpus of a trial.

    Args:
        data: The parameter `data` of the task.
        files: The folder that `prepare` wrote the corpus to.

    Raises:
        ValueError: The corpus does not exist, or has changed since it was written.
    """
    if data == TEXT and not (files / CORPUS).is_dir():
        raise ValueError(
            f"data must be {TEXT} for the whole search, not for some trials, but there is no "
            f"{files / CORPUS}. Use --set data={TEXT}. With several nodes, all must see the folder of --storage."
        )
    path = files / CORPUS if data == TEXT else Path(data)
    with renamed_errors({"source must": "data must"}):
        source = (
            read_corpus(path, 1) if path.is_dir() else build_bytes_source(data, {path.name: np.fromfile(path, "u1")}, 1)
        )
    train, test = (_join(source, part) for part in ("train", "test"))
    bits = compute_bits_per_byte(train[-COUNTED:].numpy(), test.numpy(), ORDERS)
    return Corpus(train, test, source.digest, bits[-1])


def _join(source: Source, part: str) -> Tensor:
    """Return the bytes of the `part` of all domains, whose windows have one byte."""
    return torch.cat([getattr(domain, part).inputs.flatten() for domain in source.domains])
