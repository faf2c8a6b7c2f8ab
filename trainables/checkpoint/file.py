"""Checkpoint files: written completely or not at all, verified when they are read, without pickled objects."""

import hashlib
import io
from contextlib import suppress
from typing import Any

from searchlight.trainables.checkpoint import images
from searchlight.trainables.filesystem.atomic_file import copy_folder, link_file, write_durable
from searchlight.trainables.filesystem.paths import StoragePath, remove_tree, with_suffix_added
from searchlight.trainables.filesystem.storage_errors import UnreadableError, unreadable_errors, unwritable_errors

DIGEST = ".sha256"
PLAIN_ONLY = "must be a dict of tensors and plain Python values"
ABOUT = ".searchlight.json"  # written last: only with this file a directory is a checkpoint


class CheckpointError(RuntimeError):
    """A checkpoint is missing or differs from what was saved."""


def save(state: dict[str, Any], path: StoragePath) -> None:
    """Write a checkpoint file, and its SHA-256 to a file next to it.

    A reader sees the old file or the new one, also after a crash, on a disk and in a bucket.

    Args:
        state: Tensors and plain Python values, by name.
        path: The path of the file. Its folder is created.
    """
    _publish(_serialize(state), path)


def load(path: StoragePath) -> dict[str, Any]:
    """Return the state that was saved at `path`, on the CPU.

    Raises:
        CheckpointError: The file is missing or its content differs from what was written.
        UnreadableError: Its storage cannot be read.
    """
    try:
        with unreadable_errors(path):
            content = path.read_bytes()
            digests = [line.split()[0] for line in with_suffix_added(path, DIGEST).read_text().splitlines()]
    except UnreadableError:  # does not mean that the checkpoint is broken
        raise
    except (OSError, IndexError, UnicodeDecodeError) as error:
        raise CheckpointError(f"checkpoint {path} must be readable with its .sha256 next to it: {error}.") from error
    if hashlib.sha256(content).hexdigest() not in digests:
        expected = " or ".join(digests) or "in its .sha256"
        raise CheckpointError(f"checkpoint {path} must have the SHA-256 {expected}, but has another: it is corrupt.")
    return parse_state(content, path)


def parse_state(content: bytes, path: StoragePath) -> dict[str, Any]:
    """Return the state in `content`, of a file of the checkpoint at `path`, on the CPU. Run no code of its writer.

    Raises:
        CheckpointError: It has other objects than tensors and plain Python values. Its SHA-256 may be right.
    """
    import torch  # here, since the driver and the workers of programs need the other functions alone

    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # torch raises any error for content that `save` did not write
        raise CheckpointError(f"checkpoint {path} {PLAIN_ONLY}, but cannot be loaded.") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {path} {PLAIN_ONLY}, but is a {type(state).__name__}.")
    return state


def link(source: StoragePath, target: StoragePath) -> None:
    """Give the checkpoint at `source` a second name, which stays when the first is deleted.

    Raises:
        FileNotFoundError: The checkpoint does not exist.
        OSError: The second name cannot be written, e.g. on a full disk.
    """
    if source.is_dir():
        copy_folder(source, target, last=ABOUT)
        return
    for suffix in ("", DIGEST):
        link_file(with_suffix_added(source, suffix), with_suffix_added(target, suffix))


def delete(path: StoragePath) -> None:
    """Remove the checkpoint at `path`, a file or a directory, and its pictures. Ignore a missing one."""
    remove_tree(with_suffix_added(path, images.SUFFIX))
    if path.is_dir():
        remove_tree(path)
        return
    path.unlink(missing_ok=True)
    with_suffix_added(path, DIGEST).unlink(missing_ok=True)


def _serialize(state: dict[str, Any]) -> memoryview:
    import torch

    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getbuffer()


def _publish(content: memoryview, path: StoragePath) -> None:
    with unwritable_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    digest = with_suffix_added(path, DIGEST)
    line = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"
    earlier = ""
    with unwritable_errors(path):
        with suppress(FileNotFoundError):
            earlier = digest.read_text()
        write_durable(digest, (line + earlier).encode())  # the earlier content is valid until it is replaced
        write_durable(path, content)
        if earlier:
            write_durable(digest, line.encode())
