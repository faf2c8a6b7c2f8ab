"""Files on a disk and in a bucket, behind one interface: that of `pathlib.Path`, as far as a search needs it."""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast
from urllib.parse import parse_qsl

from trainables.filesystem.remote_path import RemotePath, run_concurrently

__all__ = [
    "RemotePath", "StoragePath", "cached_on_node", "compute_digest", "copy", "download", "get_modified_ns",
    "list_files", "list_sizes", "local_copy", "parse_path", "remove_tree", "replacing", "upload", "with_suffix_added",
]  # fmt: skip

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
S3_OPTIONS = ("endpoint_override", "region", "scheme", "tls_ca_file_path")
SECRET = re.compile("key|secret|token|password|signature|sas", re.IGNORECASE)

NODE_CACHE = "searchlight-files"

StoragePath = Path | RemotePath
AnyPath = TypeVar("AnyPath", bound=StoragePath)


def parse_path(where: str | Path | RemotePath) -> StoragePath:
    """A `Path` for a path or a file:// URI, else a `Remote` for a URI.

    What is in the query goes to the file system: `s3://bucket/path?endpoint_override=http://host:9000&region=here`.
    Without, S3 is where AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION and AWS_DEFAULT_REGION say.

    Raises:
        ValueError: The URI is of no known kind, names no bucket, or has credentials in it.
    """
    if not isinstance(where, str) or "://" not in where:
        return where if isinstance(where, RemotePath) else Path(where)
    scheme, _, rest = where.partition("://")
    path, _, query = rest.partition("?")
    authority, _, path = path.partition("/")
    scheme, path = scheme.lower(), path.strip("/")
    if scheme == "file":
        return Path("/", path)
    if scheme not in SCHEMES:
        raise ValueError(f"a place must be a path or a URI of {', '.join(SCHEMES)} or file, but got {scheme}://.")
    options = dict(parse_qsl(query, keep_blank_values=True))
    user = authority.rpartition("@")[0]
    # An account's key has slashes at times, so that what is before the first one need not have the @.
    in_authority = ":" in user or (scheme == "s3" and re.search("[@:]", authority))
    if in_authority or any(SECRET.search(name) or "@" in value for name, value in options.items()):
        raise ValueError(
            f"a place must have no credentials in it, but the {scheme}:// URI has. Put them into the environment, "
            "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role."
        )
    if not authority and scheme not in ("hdfs", "viewfs"):
        raise ValueError(f"a place must name a bucket, but got {where}. Write {scheme}://bucket/path.")
    if scheme == "s3" and (unknown := [name for name in options if name not in S3_OPTIONS]):
        raise ValueError(f"the query of a place must be of {', '.join(S3_OPTIONS)}, but got {', '.join(unknown)}.")
    return RemotePath(scheme, authority, path, query)


def with_suffix_added(where: AnyPath, suffix: str) -> AnyPath:
    """Return the path beside `where` that has `suffix` after its name."""
    return cast(AnyPath, where.with_name(where.name + suffix))


def get_modified_ns(where: StoragePath) -> int:
    """When a file was written, in ns since 1970.

    Raises:
        FileNotFoundError: There is none.
    """
    return where.get_modified_ns() if isinstance(where, RemotePath) else where.stat().st_mtime_ns


def remove_tree(where: StoragePath) -> None:
    """Remove a folder and all that is in it. One that is not there is no error, on a disk no error is one."""
    if isinstance(where, Path):
        shutil.rmtree(where, ignore_errors=True)
        return
    with suppress(FileNotFoundError):
        where.remove_tree()


@contextmanager
def local_copy(where: StoragePath) -> Iterator[Path]:
    """A file or a folder on a disk: itself, or a copy for as long as this is open.

    Raises:
        FileNotFoundError: There is none.
    """
    if isinstance(where, Path):
        yield where
        return
    with tempfile.TemporaryDirectory(prefix="searchlight-") as folder:
        local = Path(folder) / (where.name or where.authority)
        download(where, local)
        yield local


def copy(source: StoragePath, target: StoragePath) -> None:
    """Copy a file. Within a bucket, nothing of it comes here.

    Raises:
        FileNotFoundError: There is none.
    """
    if isinstance(source, RemotePath) and isinstance(target, RemotePath):
        if replace(source, path="") == replace(target, path=""):
            source.copy_to(target)
        else:
            target.write_bytes(source.read_bytes())
    elif isinstance(target, RemotePath):
        assert isinstance(source, Path)
        upload(source, target)
    else:
        download(source, target)


def upload(source: Path, target: RemotePath, names: Sequence[str] | None = None) -> None:
    """Put a file, or the files of a folder, into a bucket. Of a folder `names` alone, if there are any given.

    Raises:
        OSError: Not all of them could be; some may.
    """
    if not source.is_dir():
        _upload_file(source, target)
        return
    run_concurrently(
        lambda name: _upload_file(source / name, target / name), list_files(source) if names is None else names
    )


def download(source: StoragePath, target: Path) -> None:
    """Get a file, or the files of a folder, out of a bucket. Each comes whole or not at all.

    Raises:
        FileNotFoundError: There is nothing.
        OSError: Not all of them could be; some may.
    """
    if isinstance(source, Path):
        copied = shutil.copytree if source.is_dir() else shutil.copyfile
        copied(source, target)
        return
    if source.is_file():
        _download_file(source, target)
        return
    names = source.list_files()
    if not names:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
    run_concurrently(lambda name: _download_file(source / name, target / name), names)


def list_files(folder: StoragePath) -> list[str]:
    """Of all files in a folder and in those below it, in order: "sub/name". On a disk, links are followed."""
    if isinstance(folder, RemotePath):
        return folder.list_files()
    paths = (Path(where, name) for where, _, names in os.walk(folder, followlinks=True) for name in names)
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def list_sizes(folder: StoragePath) -> list[tuple[str, int]]:
    """Return the name and the bytes of each file in a folder and in those below it, or nothing if there is none."""
    if isinstance(folder, Path):
        return [(name, (folder / name).stat().st_size) for name in list_files(folder)]
    files = [info for info in folder.list_entries(recursive=True) if info.is_file]
    return [(info.path.removeprefix(f"{folder.key}/"), info.size) for info in files]


def compute_digest(where: StoragePath) -> str:
    """The SHA-256 of a file."""
    if isinstance(where, Path):
        with open(where, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    found = hashlib.sha256()
    for chunk in where.read_chunks():
        found.update(chunk)
    return found.hexdigest()


def cached_on_node(where: str, temporary: str) -> Path:
    """Return the folder `where`. Of one in a bucket, return a copy that all workers of this node share.

    Args:
        where: A path or a URI.
        temporary: The node's own folder that the copy may lie in.

    Raises:
        OSError: The folder cannot be read or copied.
    """
    source = parse_path(where)
    if isinstance(source, Path):
        return source
    files = [(info.path, info.size, info.mtime_ns) for info in source.list_entries(recursive=True) if info.is_file]
    # A folder that has changed since has another copy.
    target = Path(temporary, NODE_CACHE, hashlib.blake2b(str(files).encode(), digest_size=16).hexdigest())
    if not files:  # the task prepares nothing
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{target}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other workers wait for the one that copies
        if not target.exists():
            staging = target.with_suffix(".tmp")
            download(source, staging)  # over what a killed worker left there
            staging.rename(target)
    return target


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path beside `target`, which replaces it at the end. An error leaves `target` as it was."""
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")  # another process may write the same file
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _upload_file(source: Path, target: RemotePath) -> None:
    import pyarrow

    if not source.stat().st_size:
        target.write_bytes(b"")
        return
    with pyarrow.memory_map(str(source)) as file:
        target.write_bytes(file.read_buffer())


def _download_file(source: RemotePath, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary, open(temporary, "wb") as file:
        file.writelines(source.read_chunks())
