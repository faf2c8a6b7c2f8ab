"""Errors of the storage itself, which are no fault of a trial: another one would meet them, too."""

import errno
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from searchlight.trainables.filesystem.remote_path import RemotePath

# Errors of this process, which cannot open more files or has no memory. At a read, they tell nothing about the file.
OF_PROCESS = (errno.EMFILE, errno.ENOMEM)
# Errors of a write that the content, its names or this process cause, so that another trial may succeed.
NOT_OF_STORAGE = (errno.EFBIG, errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, *OF_PROCESS)
# Errors of a file and a folder of one name, e.g. of two ranks in their parts of a checkpoint.
CONFLICTS = (errno.EEXIST, errno.EISDIR)
# Errors of a read on a disk that tell what is at a path, or that nothing is.
OF_PLACE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


class UnwritableError(OSError):
    """The storage takes nothing, of this trial or another: it is full, read-only, forbidden, broken or away."""

    def __str__(self) -> str:
        """Return the message of a bucket as it is, since it names its path already."""
        reason = str(self.strerror)
        return reason if self.filename and str(self.filename) in reason else super().__str__()


class UnreadableError(UnwritableError):
    """The storage gives nothing, of this trial or another: it is forbidden, broken or away."""


@contextmanager
def unwritable_errors(path: Path | RemotePath, of_content: Collection[int] = ()) -> Iterator[None]:
    """Raise an UnwritableError of `path` in place of errors of its storage. The block must do nothing but write it.

    Args:
        of_content: Numbers of further errors that the content causes, and not the storage.
    """
    try:
        yield
    except OSError as error:
        number = get_storage_errno(error)
        if error.errno is None and is_outage(error, path):
            number = errno.EIO
        if number and number not in of_content:
            raise UnwritableError(number, error.strerror or str(error), str(path)) from error
        raise


@contextmanager
def unreadable_errors(path: Path | RemotePath) -> Iterator[None]:
    """Raise an UnreadableError in place of errors of the storage of `path`. The block must do nothing but read it."""
    try:
        yield
    except OSError as error:
        if is_outage(error, path):
            reason = error.strerror or str(error)
            raise UnreadableError(error.errno or errno.EIO, reason, str(error.filename or path)) from error
        raise


def is_outage(error: BaseException, path: Path | RemotePath) -> bool:
    """Return whether a request for `path` failed, other than for what is at this path or is not."""
    if isinstance(path, RemotePath):
        return isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    is_of_process = isinstance(error, OSError) and error.errno in OF_PROCESS
    return is_of_process or get_storage_errno(error) not in (0, *OF_PLACE)


def get_storage_errno(error: BaseException) -> int:
    """Return the number of `error`, or 0 if it is not an error of the storage."""
    number = error.errno if isinstance(error, OSError) else None
    return 0 if number is None or number in NOT_OF_STORAGE else number
