"""Images that a task renders, stored as PNG next to the checkpoint of their report."""

import io
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from searchlight.trainables.filesystem.atomic_file import write_folder
from searchlight.trainables.filesystem.paths import StoragePath, get_modified_ns, with_suffix_added

Picture = NDArray[np.uint8]
SUFFIX = ".pictures"  # of the folder next to a checkpoint
NAME = re.compile(r"[A-Za-z0-9_-]{1,100}")


def check_images(pictures: Any) -> dict[str, Picture]:
    """Return `pictures` if it is a mapping from names to uint8 arrays of shape (height, width, 3).

    Raises:
        ValueError: It is not. The message names all problems.
    """
    if not isinstance(pictures, Mapping):
        raise ValueError(f"pictures must return arrays by name, but got {type(pictures).__name__}. Return a dict.")
    problems = [problem for name, picture in pictures.items() if (problem := _describe_problem(name, picture))]
    if problems:
        raise ValueError(" ".join(problems))
    return dict(pictures)


def save(pictures: Mapping[str, Picture], checkpoint: StoragePath) -> None:
    """Write pictures as PNG next to `checkpoint`, before the checkpoint. On a disk, write all of them or none."""
    from PIL import Image  # here: most tasks draw nothing

    files = {f"{name}.png": io.BytesIO() for name in pictures}
    for picture, file in zip(pictures.values(), files.values(), strict=True):
        Image.fromarray(picture).save(file, "PNG")
    # An earlier folder is of the same epoch, which is done again.
    write_folder(with_suffix_added(checkpoint, SUFFIX), {name: file.getvalue() for name, file in files.items()})


def find_best_images(folder: StoragePath) -> StoragePath | None:
    """Return the folder of the newest pictures among a trial's checkpoints, or None if no folder exists.

    These belong to the best report, since only a report that is better than all earlier ones has pictures.
    """
    found: list[tuple[int, int, Any]] = []
    paths = [*folder.glob(f"*{SUFFIX}")]
    for path in paths:
        # Without its checkpoint, a folder may be incomplete, or belong to a report that was never made.
        checkpoint = path.with_name(path.name.removesuffix(SUFFIX))
        epoch = re.match(r"epoch-(\d+)", checkpoint.name)
        with suppress(FileNotFoundError):  # it may have been deleted since
            found.append((get_modified_ns(checkpoint), int(epoch[1]) if epoch else 0, path))
    if not found and len(paths) == 1:  # the trial has ended, and its checkpoint was not kept
        found = [(0, 0, paths[0])]
    return max(found)[2] if found else None


def _describe_problem(name: Any, picture: Any) -> str:
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return f"pictures must have names of letters, digits, - and _ (at most 100), but got {name!r}. Rename it."
    if not isinstance(picture, np.ndarray):
        got = type(picture).__name__
    elif picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3 and picture.size:
        return ""
    else:
        got = f"{picture.dtype} of shape {picture.shape}"
    return f"picture {name!r} must be a numpy array of uint8 of shape (height, width, 3), but got {got}."
