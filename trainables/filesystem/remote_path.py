"""A file or a folder in a bucket, with the interface of `pathlib.Path`.

fsspec and universal-pathlib do not refuse a write that is incomplete, and each of their file systems words its errors
in its own way. They also take credentials from URIs, which this project keeps in search.yaml and shows to users.
"""

import errno
import functools
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import parse_qsl

MISSING = re.compile(r"NO_SUCH_(KEY|BUCKET)|HTTP status 404")
REFUSED = re.compile(r"ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE_DOES_NOT|HTTP status 40[13]")
CONNECT_S, REQUEST_S, ATTEMPTS = 5.0, 20.0, 4  # an unreachable store is reported within half a minute
AT_ONCE = 8  # concurrent requests for parts of a file or files of a folder
CHUNK = 16 * 2**20


@dataclass(frozen=True, order=True)
class RemotePath:
    """A file or a folder in a bucket, or in another store of `pyarrow.fs`. Created by `parse_path`.

    Like `Path`, it is only a name: only methods that read or write send requests. They raise the errors of `Path`, with
    the URI in the message. A file is read as it was last written. A folder exists while it contains a file.
    """

    scheme: str
    authority: str
    path: str  # after the authority, without a slash at either end
    query: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}/{self.path}".rstrip("/") + (f"?{self.query}" if self.query else "")

    def __truediv__(self, name: str) -> "RemotePath":
        return replace(self, path=posixpath.join(self.path, name).strip("/"))

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def parent(self) -> "RemotePath":
        return replace(self, path=posixpath.dirname(self.path))

    def with_name(self, name: str) -> "RemotePath":
        return self.parent / name

    def absolute(self) -> "RemotePath":
        return self

    expanduser = resolve = absolute

    def as_uri(self) -> str:
        """Return the URI without its query, which other programs would treat as part of the path."""
        return str(replace(self, query=""))

    @property
    def filesystem(self) -> Any:
        """The `pyarrow.fs.FileSystem`, shared by all paths of a bucket in this process."""
        return _get_filesystem(self.scheme, self.authority, self.query)[0]

    @property
    def key(self) -> str:
        """The path within `filesystem`. For S3, this is the bucket and the key."""
        root = _get_filesystem(self.scheme, self.authority, self.query)[1].rstrip("/")
        return f"{root}/{self.path}" if self.path else root or "/"

    def exists(self) -> bool:
        return bool(self._get_info().type.name != "NotFound")

    def is_file(self) -> bool:
        return bool(self._get_info().is_file)

    def is_dir(self) -> bool:
        return bool(self._get_info().type.name == "Directory")

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: a folder exists once it contains a file."""

    def read_bytes(self) -> bytes:
        with self._translate_errors(), self.filesystem.open_input_file(self.key) as file:
            size = file.size()
            return b"".join(
                run_concurrently(lambda start: file.read_at(min(CHUNK, size - start), start), range(0, size, CHUNK))
            )

    def read_chunks(self) -> Iterator[bytes]:
        """Yield the content of the file in chunks, for a file that may be larger than the memory."""
        with self._translate_errors(), self.filesystem.open_input_file(self.key) as file:
            while chunk := file.read(CHUNK):
                yield chunk

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: Any) -> int:
        """Write `content`, any object with a buffer, and return the number of bytes."""
        with self._translate_errors(), self.filesystem.open_output_stream(self.key, compression=None) as file:
            # In one call: a partial write would be published when an exception closes the stream.
            return int(file.write(content))

    def write_text(self, content: str, encoding: str = "utf-8") -> int:
        return self.write_bytes(content.encode(encoding))

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            with self._translate_errors():
                self.filesystem.delete_file(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def remove_tree(self) -> None:
        with self._translate_errors():
            self.filesystem.delete_dir(self.key)

    def copy_to(self, target: "RemotePath") -> None:
        """Copy the file within its bucket, without a download."""
        with self._translate_errors():
            self.filesystem.copy_file(self.key, target.key)

    def iterdir(self) -> Iterator["RemotePath"]:
        """Iterate over the content of the folder, sorted."""
        return iter([self / posixpath.basename(info.path) for info in self.list_entries(recursive=False)])

    def glob(self, pattern: str) -> Iterator["RemotePath"]:
        """Iterate over the content of the folder whose name matches `pattern`. The pattern has one level."""
        return (found for found in self.iterdir() if fnmatchcase(found.name, pattern))

    def list_files(self) -> list[str]:
        """Return the relative paths of all files below the folder, sorted, as "sub/name"."""
        start = len(self.key.rstrip("/")) + 1
        return [info.path[start:] for info in self.list_entries(recursive=True) if info.is_file]

    def get_modified_ns(self) -> int:
        """Return when the file was last written, in nanoseconds since 1970. S3 reports whole seconds."""
        info = self._get_info()
        if not info.is_file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return int(info.mtime_ns)

    def list_entries(self, recursive: bool) -> list[Any]:
        """Return the `pyarrow.fs.FileInfo` of each entry of the folder, sorted."""
        from pyarrow.fs import FileSelector

        with self._translate_errors():
            found = self.filesystem.get_file_info(FileSelector(self.key, allow_not_found=True, recursive=recursive))
        return sorted(found, key=lambda info: info.path)

    def _get_info(self) -> Any:
        with self._translate_errors():
            return self.filesystem.get_file_info(self.key)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raise errors of pyarrow as those of `Path`, with the URI in the message."""
        try:
            yield
        except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
            reason = " ".join(str(error).split())
            if isinstance(error, FileNotFoundError) or MISSING.search(reason):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self)) from error
            if isinstance(error, PermissionError) or REFUSED.search(reason):
                raise PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)} ({reason})", str(self)) from error
            raise OSError(f"{self}: {reason}") from error


def run_concurrently(action: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
    if len(items) == 1:
        return [action(items[0])]
    with ThreadPoolExecutor(AT_ONCE, "files") as pool:
        return list(pool.map(action, items))


@functools.cache
def _get_filesystem(scheme: str, authority: str, query: str) -> tuple[Any, str]:
    """Return the file system and the path of its root."""
    from pyarrow import fs  # here: a search on a disk does without

    if scheme != "s3":
        found: tuple[Any, str] = fs.FileSystem.from_uri(f"{scheme}://{authority}/" + (f"?{query}" if query else ""))
        return found
    options = dict(parse_qsl(query))
    endpoint = options.pop("endpoint_override", "") or _read_first_variable(
        "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"
    ).rstrip("/")
    region = options.pop("region", "") or _read_first_variable("AWS_REGION", "AWS_DEFAULT_REGION")
    if not region:  # other stores ignore the region
        region = "us-east-1" if endpoint else fs.resolve_s3_region(authority)
    made = fs.S3FileSystem(
        endpoint_override=endpoint or None,
        region=region,
        connect_timeout=CONNECT_S,
        request_timeout=REQUEST_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        allow_delayed_open=True,  # one request for a small file instead of three
        **options,
    )
    return made, authority


def _read_first_variable(*variables: str) -> str:
    return next((value for variable in variables if (value := os.environ.get(variable))), "")
