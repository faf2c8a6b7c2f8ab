"""What lies in a bucket, on the disk of the node that works with it."""

import fcntl
import hashlib
from pathlib import Path

from trainables.filesystem.paths import RemotePath, download, parse_path

NAME = "searchlight-files"


def cached_on_node(where: str, temporary: str) -> Path:
    """The folder `where`. Of one in a bucket, a copy that all workers of this node share.

    Args:
        where: A path or a URI.
        temporary: The node's own folder that the copy may lie in.

    Raises:
        OSError: It cannot be read, or copied.
    """
    found = parse_path(where)
    return found if isinstance(found, Path) else copy_to_node(found, Path(temporary) / NAME)


def copy_to_node(source: RemotePath, below: Path) -> Path:
    """A copy of the folder `source`, made once. Of one that has changed since there is another."""
    found = [(info.path, info.size, info.mtime_ns) for info in source.list_entries(recursive=True) if info.is_file]
    target = below / hashlib.blake2b(str(found).encode(), digest_size=16).hexdigest()
    if not found:  # the task prepares nothing
        return target
    below.mkdir(parents=True, exist_ok=True)
    with open(f"{target}.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other workers wait for the one that copies
        if not target.exists():
            staging = target.with_suffix(".tmp")
            download(source, staging)  # what a worker that was killed left is written over
            staging.rename(target)
    return target
