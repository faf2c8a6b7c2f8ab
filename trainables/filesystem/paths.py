"""Files on a disk or in a bucket, behind the part of the interface of `pathlib.Path` that a search needs."""

import errno
import fcntl
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import parse_qsl

from searchlight.trainables.filesystem.remote_path import RemotePath as RemotePath
from searchlight.trainables.filesystem.remote_path import run_concurrently
from searchlight.trainables.filesystem.storage_errors import unreadable_errors, unwritable_errors

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
ATOMIC = ("file", "s3", "gs", "gcs")
S3_OPTIONS = ("endpoint_override", "region", "scheme", "tls_ca_file_path")
SECRET = re.compile("key|secret|token|password|signature|sas", re.IGNORECASE)

NODE_CACHE = "searchlight-files"
FEW = 4  # largest number of folders of a bucket that are listed one by one

StoragePath = Path | RemotePath
AnyPath = TypeVar("AnyPath", bound=StoragePath)


def parse_path(where: str | Path | RemotePath) -> StoragePath:
    """Return a `Path` for a path or a file:// URI, or a `RemotePath` for another URI.

    The query holds options of the file system: `s3://bucket/path?endpoint_override=http://host:9000&region=here`.
    Without them, S3 uses AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION and AWS_DEFAULT_REGION.

    Raises:
        ValueError: The scheme is unknown, the bucket is missing, or the URI holds credentials.
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
    # A key may contain slashes: then the @ follows the first slash.
    in_authority = ":" in user or (scheme == "s3" and re.search("[@:]", authority))
    if in_authority or any(SECRET.search(name) or "@" in value for name, value in options.items()):
        raise ValueError(
            f"a URI must have no credentials in it, but the {scheme}:// URI has. Put them into the environment, "
            "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role."
        )
    if not authority and scheme not in ("hdfs", "viewfs"):
        raise ValueError(f"a place must name a bucket, but got {where}. Write {scheme}://bucket/path.")
    if scheme == "s3" and (unknown := [name for name in options if name not in S3_OPTIONS]):
        raise ValueError(f"the query of a place must be of {', '.join(S3_OPTIONS)}, but got {', '.join(unknown)}.")
    return RemotePath(scheme, authority, path, query)


def with_suffix_added(where: AnyPath, suffix: str) -> AnyPath:
    """Return the sibling of `where` whose name has `suffix` appended."""
    return cast(AnyPath, where.with_name(where.name + suffix))


def get_scheme(where: StoragePath) -> str:
    """Return the scheme of the URI of `where`: "s3", "gs", ..., or "file" for a path on a disk."""
    return where.scheme if isinstance(where, RemotePath) else "file"


def replaces_atomically(where: StoragePath) -> bool:
    """Return whether a write keeps the old content until the new one is complete. Azure and HDFS empty a file first."""
    return get_scheme(where) in ATOMIC


def get_outage_errors(where: StoragePath) -> tuple[type[OSError], ...]:
    """Return the errors after which a later call may succeed: none on a disk, those of requests for a bucket."""
    return (OSError,) if isinstance(where, RemotePath) else ()


def may_exist(where: StoragePath, in_bucket: bool) -> bool:
    """Return whether `where` exists on a disk. No request is sent to a bucket, for which the answer is `in_bucket`."""
    return in_bucket if isinstance(where, RemotePath) else where.exists()


def get_arrow_location(where: StoragePath) -> tuple[str, Any]:
    """Return the path of `where` for pyarrow, and its `pyarrow.fs.FileSystem`."""
    from pyarrow import fs  # here: most processes do without

    return (where.key, where.filesystem) if isinstance(where, RemotePath) else (str(where), fs.LocalFileSystem())


def get_modified_ns(where: StoragePath) -> int:
    """Return when a file was last written, in nanoseconds since 1970.

    Raises:
        FileNotFoundError: The file does not exist.
    """
    return where.get_modified_ns() if isinstance(where, RemotePath) else where.stat().st_mtime_ns


def remove_tree(where: StoragePath) -> None:
    """Remove a folder and its content. Ignore a missing folder, and all errors on a disk."""
    if isinstance(where, Path):
        shutil.rmtree(where, ignore_errors=True)
        return
    with suppress(FileNotFoundError):
        where.remove_tree()


def delete_except(folder: StoragePath, kept: Mapping[str, set[str]]) -> None:
    """Delete the content of some subfolders of `folder`.

    Args:
        folder: Subfolders that `kept` does not name stay unchanged.
        kept: The names of what stays, by the name of the subfolder.
    """
    if isinstance(folder, Path):
        for path in (path for name in kept for path in (folder / name).glob("*")):
            if path.name not in kept[path.parent.name]:
                remove_tree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return
    # One request lists all subfolders, since a resumed search may have many.
    for where in [folder / name for name in kept] if len(kept) <= FEW else [folder]:
        for file in (where / name for name in where.list_files()):
            subfolder, _, inside = file.path.removeprefix(f"{folder.path}/").partition("/")
            if subfolder in kept and inside.partition("/")[0] not in kept[subfolder]:
                file.unlink(missing_ok=True)


def start_deletion(pool: Executor, action: Callable[..., None], where: StoragePath, *arguments: Any) -> Future[None]:
    """Call `action(where, *arguments)`, which deletes `where`: on a disk at once, in a bucket in a thread of `pool`.

    Raises:
        OSError: The file on a disk cannot be deleted.
    """
    if isinstance(where, RemotePath):
        return pool.submit(action, where, *arguments)
    done: Future[None] = Future()
    action(where, *arguments)
    done.set_result(None)
    return done


@contextmanager
def lock_file(where: StoragePath) -> Iterator[None]:
    """Hold an exclusive lock on a file until the block ends, and create the file. In a bucket, do nothing."""
    if isinstance(where, RemotePath):
        yield
        return
    with open(where, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def local_copy(where: StoragePath) -> Iterator[Path]:
    """Yield the local path of a file or a folder. Download one in a bucket until the block ends.

    Raises:
        FileNotFoundError: It does not exist.
    """
    if isinstance(where, Path):
        yield where
        return
    with tempfile.TemporaryDirectory(prefix="searchlight-") as folder:
        local = Path(folder) / (where.name or where.authority)
        download(where, local)
        yield local


@contextmanager
def synced(folder: StoragePath) -> Iterator[Path]:
    """Yield the local path of a folder, which may be missing. That of one in a bucket is a copy, uploaded at the end.

    Raises:
        UnwritableError: The bucket takes no files, or gives none.
        OSError: Files could not be copied.
    """
    if isinstance(folder, Path):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="searchlight-") as temporary:
        local = Path(temporary) / folder.name
        with unreadable_errors(folder), suppress(FileNotFoundError):
            download(folder, local)
        try:
            yield local
        finally:
            upload(local, folder)


def copy(source: StoragePath, target: StoragePath) -> None:
    """Copy a file. Within a bucket, copy it without a download.

    Raises:
        FileNotFoundError: It does not exist.
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
    """Upload a file, or the files of a folder, or only those in `names`.

    Raises:
        UnwritableError: The bucket takes no files. Others may have been uploaded.
        OSError: A file could not be read.
    """
    if not source.is_dir():
        _upload_file(source, target)
        return
    run_concurrently(
        lambda name: _upload_file(source / name, target / name), list_files(source) if names is None else names
    )


def download(source: StoragePath, target: Path) -> None:
    """Copy a file, or the files of a folder, to the path `target`. Each file from a bucket appears complete or not at
    all.

    Raises:
        FileNotFoundError: It does not exist.
        OSError: A file could not be copied. Others may have been.
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
    """Return the relative paths of all files below a folder, sorted, as "sub/name". Follow links on a disk."""
    if isinstance(folder, RemotePath):
        return folder.list_files()
    paths = (Path(where, name) for where, _, names in os.walk(folder, followlinks=True) for name in names)
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def list_sizes(folder: StoragePath) -> list[tuple[str, int]]:
    """Return the relative path and the size in bytes of each file below a folder."""
    if isinstance(folder, Path):
        return [(name, (folder / name).stat().st_size) for name in list_files(folder)]
    files = [info for info in folder.list_entries(recursive=True) if info.is_file]
    return [(info.path.removeprefix(f"{folder.key}/"), info.size) for info in files]


def compute_digest(where: StoragePath) -> str:
    """Return the SHA-256 of a file."""
    if isinstance(where, Path):
        with open(where, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    found = hashlib.sha256()
    for chunk in where.read_chunks():
        found.update(chunk)
    return found.hexdigest()


def cached_on_node(where: str, temporary: str) -> Path:
    """Return the folder `where`, or the copy of a remote folder that all workers of this node share.

    Args:
        where: A path or a URI.
        temporary: A folder on this node for the copy.

    Raises:
        OSError: The folder cannot be read or copied.
    """
    source = parse_path(where)
    if isinstance(source, Path):
        return source
    files = [(info.path, info.size, info.mtime_ns) for info in source.list_entries(recursive=True) if info.is_file]
    # A changed folder gets another copy.
    target = Path(temporary, NODE_CACHE, hashlib.blake2b(str(files).encode(), digest_size=16).hexdigest())
    if not files:  # the task prepares nothing
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(target.with_suffix(".lock")):  # the other workers wait for the one that copies
        if not target.exists():
            staging = target.with_suffix(".tmp")
            download(source, staging)  # overwrites an incomplete copy of a killed worker
            staging.rename(target)
    return target


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path, which replaces `target` at the end. Leave `target` unchanged on an error."""
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")  # another process may write the same file
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _upload_file(source: Path, target: RemotePath) -> None:
    import pyarrow

    if not source.stat().st_size:
        with unwritable_errors(target):
            target.write_bytes(b"")
        return
    with pyarrow.memory_map(str(source)) as file, unwritable_errors(target):
        target.write_bytes(file.read_buffer())


def _download_file(source: RemotePath, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary, open(temporary, "wb") as file:
        file.writelines(source.read_chunks())
