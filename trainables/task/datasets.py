"""The data sets of a trial, by name and digest."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

Use = Literal["training", "evaluation"]
LONGEST_NAME = 500  # MLflow's limit
READ_BYTES = 2**20


@dataclass(frozen=True)
class DataSet:
    """A data set that a trial uses.

    Attributes:
        name: The name in MLflow, at most 500 characters.
        digest: The text that identifies the content.
        source: Where the data comes from: a URL, a path, or a package and its version.
        use: "training" or "evaluation": what the trial does with the data.

    Raises:
        ValueError: The name is empty or too long, or the use is unknown.
    """

    name: str
    digest: str
    source: str = ""
    use: Use = "training"

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > LONGEST_NAME:
            raise ValueError(f"dataset must have a name of at most {LONGEST_NAME} characters, but got {self.name!r}.")
        if self.use not in get_args(Use):
            raise ValueError(f"dataset must have the use 'training' or 'evaluation', but got {self.use!r}.")


def digest_of(data: Any) -> str:
    """Return the SHA-256 of `data`, 64 hexadecimal digits.

    Args:
        data: Tensors, arrays, plain values, and lists, tuples and dicts of them. A path stands for the content of its
            file, or of all files in its folder by their names. Types and shapes count; strides, the device and the
            order of a dict do not.

    Raises:
        ValueError: `data` contains an object of another type.
    """
    sha = hashlib.sha256()
    for part in _encode_data(data):
        sha.update(part)
    return sha.hexdigest()


def _encode_data(data: Any) -> Iterator[bytes | memoryview]:
    """Yield the bytes to hash. The type and length precede each value, so that encodings are unambiguous."""
    if isinstance(data, torch.Tensor):
        flat = data.detach().cpu().contiguous()
        yield f"tensor {flat.dtype} {tuple(flat.shape)}\n".encode()
        yield flat.reshape(-1).view(torch.uint8).numpy().data
    elif isinstance(data, np.ndarray | np.generic) and data.dtype != object:
        array = np.ascontiguousarray(data)
        yield f"array {array.dtype.str} {np.shape(data)}\n".encode()
        yield array.reshape(-1).view(np.uint8).data
    elif isinstance(data, np.ndarray):
        yield from _encode_data(["object", list(data.shape), data.ravel().tolist()])
    elif isinstance(data, Mapping):
        yield f"dict {len(data)}\n".encode()
        for key in sorted(data, key=repr):
            yield from _encode_data((key, data[key]))
    elif isinstance(data, list | tuple):
        yield f"list {len(data)}\n".encode()
        for item in data:
            yield from _encode_data(item)
    elif isinstance(data, Path):
        yield from _encode_files(data)
    elif isinstance(data, str | bytes):
        content = data.encode() if isinstance(data, str) else data
        yield f"{type(data).__name__} {len(content)}\n".encode()
        yield content
    elif isinstance(data, int | float | complex | None):
        yield f"{type(data).__name__} {data!r}\n".encode()
    else:
        raise ValueError(
            "dataset must get tensors, arrays, plain values or paths, in lists and dicts, but got "
            f"{type(data).__name__}. Give a digest: self.dataset(name, digest=...)."
        )


def _encode_files(path: Path) -> Iterator[bytes]:
    files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
    for file in files:
        name = file.relative_to(path).as_posix() if file != path else ""
        yield f"file {name!r} {file.stat().st_size}\n".encode()
        with open(file, "rb") as opened:
            while part := opened.read(READ_BYTES):
                yield part
