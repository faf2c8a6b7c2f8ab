"""The version of a model in a folder."""

import hashlib
from pathlib import Path

SMALL = 1 << 20


def hash_folder(folder: Path) -> str:
    """Return a hash of the names, sizes and contents of a folder's files, 16 hexadecimal digits.

    For files above 1 MiB, mostly weights, the time of the last change replaces the content, to save time. A copy of the
    folder may therefore have another revision.
    """
    sha = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = file.relative_to(folder)
        if any(part.startswith(".") for part in name.parts):
            continue
        stat = file.stat()
        content = file.read_bytes() if stat.st_size <= SMALL else str(stat.st_mtime_ns).encode()
        sha.update(f"{name.as_posix()} {stat.st_size} {hashlib.sha256(content).hexdigest()}\n".encode())
    return sha.hexdigest()[:16]
