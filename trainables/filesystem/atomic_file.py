"""Files and folders that are written completely or not at all."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from searchlight.trainables.filesystem.paths import (
    RemotePath,
    StoragePath,
    copy,
    list_files,
    remove_tree,
    replacing,
    upload,
)

LEFT_AFTER_S = 60.0
JOURNALS = ("-journal", "-wal", "-shm")  # of SQLite
NO_PROCESS = 2**31  # no process has this number or a larger one


@contextmanager
def atomic_path(path: StoragePath) -> Iterator[Path]:
    """Yield a temporary path, which replaces `path` at the end. Leave `path` unchanged on an error.

    Raises:
        OSError: The file cannot be written.
    """
    if isinstance(path, RemotePath):
        with tempfile.TemporaryDirectory(prefix="searchlight-") as folder:
            yield Path(folder, path.name)
            upload(Path(folder, path.name), path)
        return
    remove_leftovers(path)
    with replacing(path) as temporary:
        yield temporary


def write_atomic(path: StoragePath, text: str) -> None:
    with atomic_path(path) as file:
        file.write_text(text, encoding="utf-8")


def write_durable(path: StoragePath, content: bytes | memoryview) -> None:
    """Replace a file. When the call ends, the disk or the bucket has the content."""
    if isinstance(path, RemotePath):
        path.write_bytes(content)
        return
    with replacing(path) as temporary:
        _write_synced(temporary, content)


def write_folder(path: StoragePath, contents: Mapping[str, bytes]) -> None:
    """Replace a folder by files of the given contents, by name. On a disk, all of them appear or none."""
    if isinstance(path, RemotePath):
        remove_tree(path)
        for name, content in contents.items():
            (path / name).write_bytes(content)
        return
    staging = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    remove_tree(staging)  # of a killed process that had this number
    staging.mkdir(parents=True)
    for name, content in contents.items():
        _write_synced(staging / name, content)
    remove_tree(path)
    staging.rename(path)


def link_file(source: StoragePath, target: StoragePath) -> None:
    """Give a file a second name, which stays when the first is deleted. Copy it if it cannot be linked.

    The file must only be replaced and never changed in place, since both names may share the content.

    Raises:
        FileNotFoundError: It does not exist.
        OSError: The second name cannot be written.
    """
    if isinstance(source, RemotePath) or isinstance(target, RemotePath):
        copy(source, target)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        temporary.unlink(missing_ok=True)
        try:
            os.link(source, temporary)
        except OSError:  # a file system without links
            shutil.copyfile(source, temporary)


def copy_folder(source: StoragePath, target: StoragePath, last: str) -> None:
    """Copy a folder. On a disk, it appears completely or not at all. In a bucket, the file `last` appears last.

    Raises:
        OSError: A file could not be copied.
    """
    if isinstance(source, RemotePath) or isinstance(target, RemotePath):
        for name in sorted(list_files(source), key=lambda name: name == last):
            copy(source / name, target / name)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    remove_tree(temporary)  # of a killed process that had this number
    try:
        shutil.copytree(source, temporary)
        remove_tree(target)  # of a process that died after it had copied
        os.replace(temporary, target)
    except shutil.Error as error:  # the errors of all files, each with source and target
        raise OSError(error.args[0][0][2]) from error
    finally:
        remove_tree(temporary)


def remove_leftovers(path: Path) -> None:
    """Remove temporary files of killed processes next to `path`, with the journals of temporary databases.

    A recent file stays, since the process that writes it may run on another machine. So does a file whose number is no
    process's, such as a time.
    """
    for file in path.parent.glob(f"{path.name}.*.tmp*"):
        number, _, ending = file.name.removeprefix(f"{path.name}.").partition(".tmp")
        if not number.isdecimal() or int(number) >= NO_PROCESS:
            continue
        with suppress(FileNotFoundError, PermissionError):  # another process removed it, or another user owns it
            old = time.time() - file.stat().st_mtime > LEFT_AFTER_S
            if old and ending in ("", *JOURNALS) and not psutil.pid_exists(int(number)):
                file.unlink()


def _write_synced(path: Path, content: bytes | memoryview) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
