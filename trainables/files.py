"""Files on a disk and in a bucket, behind one interface: that of `pathlib.Path`, as far as a search needs it."""

import errno
import functools
import os
import posixpath
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
S3_OPTIONS = ("endpoint_override", "region", "scheme", "tls_ca_file_path")
SECRET = re.compile("key|secret|token|password|signature|sas", re.IGNORECASE)
MISSING = re.compile(r"NO_SUCH_(KEY|BUCKET)|HTTP status 404")
REFUSED = re.compile(r"ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE_DOES_NOT|HTTP status 40[13]")
CONNECT_S, REQUEST_S, ATTEMPTS = 5.0, 20.0, 4  # a place that cannot be reached is told in half a minute
AT_ONCE = 8  # files of a folder that are on their way
CHUNK = 64 * 2**20


@dataclass(frozen=True, order=True)
class Remote:
    """A file or a folder in a bucket, or wherever else `pyarrow.fs` reaches. Made by `place`.

    A name, as `Path` is: nothing is asked of the bucket before a method that reads or writes. What these raise is what
    `Path` raises, with the URI in the message. A file is written whole or not at all, and read as it was written last.
    There are no folders: one is there while something is in it.
    """

    scheme: str
    authority: str
    path: str  # behind the authority, without a slash at either end
    query: str = ""

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}/{self.path}".rstrip("/") + (f"?{self.query}" if self.query else "")

    def __truediv__(self, name: str) -> "Remote":
        return replace(self, path=posixpath.join(self.path, name).strip("/"))

    @property
    def name(self) -> str:
        return posixpath.basename(self.path)

    @property
    def stem(self) -> str:
        return Path(self.name).stem

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def parent(self) -> "Remote":
        return replace(self, path=posixpath.dirname(self.path))

    def with_name(self, name: str) -> "Remote":
        return self.parent / name

    @property
    def filesystem(self) -> Any:
        """The `pyarrow.fs.FileSystem`, one for all places of a bucket in this process."""
        return _filesystem(self.scheme, self.authority, self.query)[0]

    @property
    def key(self) -> str:
        """What `filesystem` calls it: for S3 the bucket and the key."""
        root = _filesystem(self.scheme, self.authority, self.query)[1].rstrip("/")
        return f"{root}/{self.path}" if self.path else root or "/"

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return bool(self._info().is_file)

    def is_dir(self) -> bool:
        return bool(self._info().type.name == "Directory")

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        """Nothing: a folder is there once something is in it."""

    def read_bytes(self) -> bytes:
        with self._told(), self.filesystem.open_input_file(self.key) as file:
            content: bytes = file.read(file.size())
            return content

    def read_text(self, encoding: str = "utf-8") -> str:
        return self.read_bytes().decode(encoding)

    def write_bytes(self, content: Any) -> int:
        """As `Path.write_bytes`; `content` may be whatever has a buffer."""
        with self._told(), self.filesystem.open_output_stream(self.key, compression=None) as file:
            # In one call: what is left half written by an exception would be published as it is.
            return int(file.write(content))

    def write_text(self, content: str, encoding: str = "utf-8") -> int:
        return self.write_bytes(content.encode(encoding))

    def unlink(self, missing_ok: bool = False) -> None:
        try:
            with self._told():
                self.filesystem.delete_file(self.key)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def iterdir(self) -> Iterator["Remote"]:
        """What is in the folder, in order; nothing if there is none."""
        return iter([self / posixpath.basename(info.path) for info in self._listed(recursive=False)])

    def glob(self, pattern: str) -> Iterator["Remote"]:
        """Those of `iterdir` whose name matches; `pattern` is of one level."""
        return (found for found in self.iterdir() if fnmatchcase(found.name, pattern))

    def files(self) -> list["Remote"]:
        """All files in the folder and in those below it, in order."""
        start = len(self.key.rstrip("/")) + 1
        return [self / info.path[start:] for info in self._listed(recursive=True) if info.is_file]

    def modified_ns(self) -> int:
        """When the file was written, in ns since 1970, to the bucket's own precision: S3's is a second."""
        info = self._info()
        if not info.is_file:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return int(info.mtime_ns)

    def _info(self) -> Any:
        with self._told():
            return self.filesystem.get_file_info(self.key)

    def _listed(self, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        with self._told():
            found = self.filesystem.get_file_info(FileSelector(self.key, allow_not_found=True, recursive=recursive))
        return sorted(found, key=lambda info: info.path)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Errors as those of `Path`, which say where."""
        try:
            yield
        except (OSError, ValueError) as error:  # pyarrow's ArrowInvalid is a ValueError
            reason = " ".join(str(error).split())
            if isinstance(error, FileNotFoundError) or MISSING.search(reason):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self)) from error
            if isinstance(error, PermissionError) or REFUSED.search(reason):
                raise PermissionError(errno.EACCES, f"{os.strerror(errno.EACCES)} ({reason})", str(self)) from error
            raise OSError(f"{self}: {reason}") from error


Place = Path | Remote


def place(where: str | Path | Remote) -> Place:
    """A `Path` for a path or a file:// URI, else a `Remote` for a URI.

    What is in the query goes to the file system: `s3://bucket/path?endpoint_override=http://host:9000&region=here`.
    Without, S3 is where AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION and AWS_DEFAULT_REGION say.

    Raises:
        ValueError: The URI is of no known kind, names no bucket, or has credentials in it.
    """
    if not isinstance(where, str) or "://" not in where:
        return where if isinstance(where, Remote) else Path(where)
    scheme, _, rest = where.partition("://")
    path, _, query = rest.partition("?")
    authority, _, path = path.partition("/")
    scheme, path = scheme.lower(), path.strip("/")
    if scheme == "file":
        return Path("/", path)
    if scheme not in SCHEMES:
        raise ValueError(f"a place must be a path or a URI of {', '.join(SCHEMES)} or file, but got {scheme}://.")
    options = [name for name, _ in parse_qsl(query, keep_blank_values=True)]
    user = authority.rpartition("@")[0]
    # An account's key has slashes at times, so that what is before the first one need not have the @.
    if ":" in user or (scheme == "s3" and re.search("[@:]", authority)) or any(map(SECRET.search, options)):
        raise ValueError(
            f"a place must have no credentials in it, but the {scheme}:// URI has. Put them into the environment, "
            "as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the machine a role."
        )
    if not authority and scheme not in ("hdfs", "viewfs"):
        raise ValueError(f"a place must name a bucket, but got {where}. Write {scheme}://bucket/path.")
    if scheme == "s3" and (unknown := [name for name in options if name not in S3_OPTIONS]):
        raise ValueError(f"the query of a place must be of {', '.join(S3_OPTIONS)}, but got {', '.join(unknown)}.")
    return Remote(scheme, authority, path, query)


def modified_ns(where: Place) -> int:
    """When a file was written, in ns since 1970.

    Raises:
        FileNotFoundError: There is none.
    """
    return where.modified_ns() if isinstance(where, Remote) else where.stat().st_mtime_ns


def remove_tree(where: Place) -> None:
    """Remove a folder and all that is in it. One that is not there is no error, on a disk no error is one."""
    if isinstance(where, Path):
        shutil.rmtree(where, ignore_errors=True)
        return
    try:
        with where._told():
            where.filesystem.delete_dir(where.key)
    except FileNotFoundError:
        pass


def copy(source: Place, target: Place) -> None:
    """Copy a file. Within a bucket, nothing of it comes here.

    Raises:
        FileNotFoundError: There is none.
    """
    if isinstance(source, Remote) and isinstance(target, Remote):
        if replace(source, path="") == replace(target, path=""):
            with source._told():
                source.filesystem.copy_file(source.key, target.key)
        else:
            target.write_bytes(source.read_bytes())
    elif isinstance(target, Remote):
        assert isinstance(source, Path)
        upload(source, target)
    else:
        download(source, target)


def upload(source: Path, target: Remote) -> None:
    """Put a file, or the files of a folder, into a bucket.

    Raises:
        OSError: Not all of them could be; some may.
    """
    if not source.is_dir():
        _put(source, target)
        return
    pairs = [(path, target / path.relative_to(source).as_posix()) for path in files_in(source)]
    _at_once(lambda pair: _put(*pair), pairs)


def download(source: Place, target: Path) -> None:
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
        _get(source, target)
        return
    files = source.files()
    if not files:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(source))
    start = len(source.path) + 1 if source.path else 0
    _at_once(lambda file: _get(file, target / file.path[start:]), files)


def files_in(folder: Path) -> list[Path]:
    """All files in a folder on a disk and in those below it, in order; links are followed."""
    return sorted(Path(where, name) for where, _, names in os.walk(folder, followlinks=True) for name in names)


def _put(source: Path, target: Remote) -> None:
    import pyarrow

    if not source.stat().st_size:
        target.write_bytes(b"")
        return
    with pyarrow.memory_map(str(source)) as file:
        target.write_bytes(file.read_buffer())


def _get(source: Remote, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    try:
        with source._told(), source.filesystem.open_input_file(source.key) as remote, open(temporary, "wb") as file:
            while chunk := remote.read(CHUNK):
                file.write(chunk)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def _at_once(action: Callable[[Any], None], items: list[Any]) -> None:
    with ThreadPoolExecutor(AT_ONCE, "files") as pool:
        list(pool.map(action, items))


@functools.cache
def _filesystem(scheme: str, authority: str, query: str) -> tuple[Any, str]:
    """The file system, and what it calls the folder above all."""
    from pyarrow import fs  # here: a search on a disk does without

    if scheme != "s3":
        found: tuple[Any, str] = fs.FileSystem.from_uri(f"{scheme}://{authority}/" + (f"?{query}" if query else ""))
        return found
    options = dict(parse_qsl(query))
    endpoint = options.pop("endpoint_override", "") or _first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL").rstrip("/")
    region = options.pop("region", "") or _first_of("AWS_REGION", "AWS_DEFAULT_REGION")
    if not region:  # what is not AWS has none that matters
        region = "us-east-1" if endpoint else fs.resolve_s3_region(authority)
    made = fs.S3FileSystem(
        endpoint_override=endpoint or None,
        region=region,
        connect_timeout=CONNECT_S,
        request_timeout=REQUEST_S,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        allow_delayed_open=True,  # one request for a small file, and not three
        **options,
    )
    return made, authority


def _first_of(*variables: str) -> str:
    return next((value for variable in variables if (value := os.environ.get(variable))), "")
