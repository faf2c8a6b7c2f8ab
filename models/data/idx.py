"""Images in the IDX files of MNIST and similar sets, from a local folder."""

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from searchlight.models.data.samples import Domain, Samples, Source

PARTS = ("train", "t10k")
UNSIGNED_BYTES = 8  # the type of the elements, third byte of the file
BRIGHTEST = 255


def is_idx(folder: Path) -> bool:
    """Return whether `folder` contains images in the IDX format of MNIST."""
    return any(folder.glob("*-images?idx3-ubyte*"))


def load_idx(folder: Path) -> Source:
    """Load MNIST, Fashion-MNIST or another set in their four files, plain or compressed (`.gz`).

    Each image is a sequence of its rows: (N, height, width) float32 in 0..1.

    Raises:
        ValueError: A file is missing or broken, or the parts do not fit together.
    """
    train, test = (_read_part(folder, part) for part in PARTS)
    if train.inputs.shape[1:] != test.inputs.shape[1:]:
        raise ValueError(
            f"source must have images of one size, but got {tuple(train.inputs.shape[1:])} to train on and "
            f"{tuple(test.inputs.shape[1:])} to test on in {folder}. Download its files again."
        )
    classes = 1 + int(max(train.targets.max(), test.targets.max()))
    domain = Domain(folder.name, train, test)
    return Source("labels", str(folder), classes, train.inputs.shape[2], classes, (domain,))


def check_idx(folder: Path) -> None:
    """Check the existence and headers of the four files.

    Raises:
        ValueError: A file is missing or broken.
    """
    for part in PARTS:
        _read_shapes(folder, part)


def _read_part(folder: Path, part: str) -> Samples:
    images, labels = (_read(*found) for found in _read_shapes(folder, part))
    return Samples(
        torch.from_numpy(images.astype(np.float32) / np.float32(BRIGHTEST)), torch.from_numpy(labels.astype(np.int64))
    )


def _read_shapes(folder: Path, part: str) -> list[tuple[Path, tuple[int, ...]]]:
    """Return the files of images and labels of one part, with the shapes in their headers."""
    images, labels = _find(folder, f"{part}-images", 3), _find(folder, f"{part}-labels", 1)
    if images[1][0] != labels[1][0] or math.prod(images[1]) == 0:
        raise ValueError(
            f"source must have one label for each image, but got {images[1][0]} images and {labels[1][0]} labels in "
            f"{images[0].name} and {labels[0].name}. Download both files again."
        )
    return [images, labels]


def _find(folder: Path, start: str, dimensions: int) -> tuple[Path, tuple[int, ...]]:
    # MNIST's names have a dash, which some unpackers replace by a dot.
    names = [f"{start}{dash}idx{dimensions}-ubyte{end}" for end in ("", ".gz") for dash in "-."]
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise ValueError(f"source must have a file {names[0]} or {names[2]}, but got {str(folder)!r} without. Add it.")
    try:
        with _open(file) as opened:
            start_of_file = opened.read(4 + 4 * dimensions)
    except (OSError, EOFError, zlib.error) as error:
        raise _build_format_error(file, str(error)) from None
    if start_of_file[:4] != bytes([0, 0, UNSIGNED_BYTES, dimensions]) or len(start_of_file) < 4 + 4 * dimensions:
        raise _build_format_error(file, f"a file that begins with {start_of_file[:4].hex(' ') or 'nothing'}")
    return file, tuple(int(size) for size in np.frombuffer(start_of_file, dtype=">u4", offset=4))


def _read(file: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    try:
        with _open(file) as opened:
            content = opened.read()[4 + 4 * len(shape) :]
    except (OSError, EOFError, zlib.error) as error:
        raise _build_format_error(file, str(error)) from None
    if len(content) != math.prod(shape):
        raise _build_format_error(file, f"{len(content)} bytes for {' x '.join(map(str, shape))}")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _open(file: Path) -> BinaryIO:
    return gzip.open(file, "rb") if file.suffix == ".gz" else open(file, "rb")  # type: ignore[return-value]


def _build_format_error(file: Path, got: str) -> ValueError:
    return ValueError(f"{file} must be an IDX file of unsigned bytes, but got {got}. Download it again.")
