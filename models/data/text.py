"""Text data: bytes of a folder of text files, in one or several domains."""

from pathlib import Path

import numpy as np
import torch

from searchlight.models.data.corpus import verify_corpus
from searchlight.models.data.ngrams import Bytes
from searchlight.models.data.samples import BYTES, Domain, Samples, Source

TESTED = 10  # one of so many bytes is tested on


def read_corpus(folder: Path, length: int = 128) -> Source:
    """Read the domains of a folder: its `*.txt` files, and its subfolders with `*.txt` files, which are joined.

    The first 90 % of the bytes of each domain are for training and the last 10 % for testing, in windows.

    Args:
        folder: Any folder of text. One that `build_corpus` has written is verified.
        length: Bytes of a window.

    Raises:
        ValueError: There is no text, too little for one window in each part, or a corpus has changed.
    """
    check_corpus(folder, length)
    verify_corpus(folder)
    return build_bytes_source(
        str(folder),
        {
            name: np.concatenate([np.fromfile(f, np.uint8) for f in files])
            for name, files in _find_domains(folder).items()
        },
        length,
    )


def check_corpus(folder: Path, length: int = 128) -> None:
    """Check the names and sizes of the files in a folder, without reading them.

    Raises:
        ValueError: There is no text, or too little.
    """
    domains = _find_domains(folder)
    if not domains:
        raise ValueError(
            f"source must be a folder with a .txt file, or a subfolder of them, for each domain, but got "
            f"{str(folder)!r} with none. Add them."
        )
    for name, files in domains.items():
        check_size(name, sum(file.stat().st_size for file in files), length)


def build_bytes_source(name: str, domains: dict[str, Bytes], length: int) -> Source:
    """Return a source of text. Each domain is cut into two parts without overlap, and each part into windows."""
    made = []
    for domain, data in domains.items():
        check_size(domain, len(data), length)
        cut = _cut(len(data))
        made.append(Domain(domain, cut_windows(data[:cut], length), cut_windows(data[cut:], length)))
    return Source("bytes", name, BYTES, 0, BYTES, tuple(made))


def cut_windows(data: Bytes, length: int) -> Samples:
    """Cut bytes into consecutive windows without overlap. Drop the remainder at the end.

    The last target of a window is the first input of the next one, so the state of a network may be carried over.

    Args:
        data: (n,) uint8 with n above `length`.
        length: T of the samples; there are (n - 1) // T of them.
    """
    count = (len(data) - 1) // length
    everything = torch.from_numpy(data)
    return Samples(
        everything[: count * length].reshape(count, length), everything[1 : count * length + 1].reshape(count, length)
    )


def _find_domains(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each domain, sorted by name, without hidden files."""
    domains: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        files = sorted(path.rglob("*.txt")) if path.is_dir() else [path] if path.suffix == ".txt" else []
        name = path.name if path.is_dir() else path.stem
        if files and name in domains:
            raise ValueError(
                f"source must have each domain once, but got {name} as a file and as a folder in {str(folder)!r}. "
                "Rename one."
            )
        if files:
            domains[name] = [file for file in files if file.is_file()]
    return domains


def _cut(size: int) -> int:
    return size - size // TESTED


def check_size(domain: str, size: int, length: int) -> None:
    if size - _cut(size) <= length:
        raise ValueError(
            f"source must have at least {TESTED * (length + 1)} bytes in each domain for windows of {length}, but got "
            f"{size} in {domain}. Add text to it, or shorten the windows."
        )
