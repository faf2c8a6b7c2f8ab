"""The default corpus in one folder: five domains of text, generated or part of every Python installation."""

import gzip
import hashlib
import json
import platform
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

from searchlight.models.data.sentences import generate_equations, generate_sentences

DESCRIPTION = "corpus.json"
SEED = 0


def build_corpus(folder: Path, bytes_per_domain: int = 500_000) -> None:
    """Write one `<domain>.txt` for each domain, and `corpus.json` with the SHA-256 and the size of each.

    "english" is the reference of the Python language (`pydoc_data.topics`), "python" the source of its standard
    library, "tables" scikit-learn's digits as numbers; "grammar" and "math" are generated. The first two differ between
    versions of Python, so copy one folder to learn from the same corpus. It is written atomically, also by several
    processes.

    Args:
        folder: Must not exist yet, or be empty. An existing corpus stays unchanged.
        bytes_per_domain: The largest size; "english" and "tables" are smaller than the default.

    Raises:
        ValueError: The folder holds other files.
    """
    if is_corpus(folder):
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".corpus-") as made:
        unfinished = Path(made) / "corpus"
        unfinished.mkdir()
        _write(unfinished, bytes_per_domain)
        try:
            unfinished.rename(folder)
        except OSError:
            # Another process was faster.
            if not is_corpus(folder):
                raise


def is_corpus(folder: Path) -> bool:
    """Return whether a folder holds a corpus. False: a corpus could be built there.

    Raises:
        ValueError: It holds other files.
    """
    if (folder / DESCRIPTION).is_file():
        return True
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(
            f"folder must hold the corpus, be empty or not exist yet, but got {str(folder)!r} with other files. "
            "Name another."
        )
    return False


def verify_corpus(folder: Path) -> None:
    """Check that the files of a folder match its `corpus.json`, if it has one.

    Raises:
        ValueError: A file is missing, differs, or is not described.
    """
    description = folder / DESCRIPTION
    if not description.is_file():
        return
    try:
        described = {
            str(name): str(entry["sha256"]) for name, entry in json.loads(description.read_text())["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{description} must describe the files of a corpus, but got {error!r}. Remove it to take them as they are."
        ) from None
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.txt")}
    for name in sorted(described.keys() | found.keys()):
        if described.get(name) != found.get(name):
            how = "is missing" if name not in found else "is not in it" if name not in described else "differs"
            raise ValueError(
                f"source must be the corpus that {description} describes, but {name} {how}. "
                f"Copy the folder again, or remove {DESCRIPTION} to take the files as they are."
            )


def _write(folder: Path, size: int) -> None:
    files = {}
    for name, make in DOMAINS.items():
        content = _take_first(make(), size)
        (folder / f"{name}.txt").write_bytes(content)
        files[f"{name}.txt"] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    description = {"python": platform.python_version(), "files": files}
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")


def _take_first(parts: Iterator[bytes], size: int) -> bytes:
    taken = bytearray()
    while len(taken) < size and (part := next(parts, None)) is not None:
        taken += part
    return bytes(taken[:size])


def _read_english() -> Iterator[bytes]:
    # Imported here, since it is half a MB that workers do not need.
    from pydoc_data.topics import topics

    return (topics[name].encode() + b"\n\n" for name in sorted(topics))


def _read_python() -> Iterator[bytes]:
    # Mixed, and without private modules: machine-specific tables, and one module of half the size.
    files = [file for file in Path(sysconfig.get_path("stdlib")).glob("*.py") if not file.name.startswith("_")]
    if not files:
        raise FileNotFoundError("the source of Python's standard library, *.py, is not there; install it unpacked")
    return (file.read_bytes() for file in sorted(files, key=lambda file: crc32(file.name.encode())))


def _read_tables() -> Iterator[bytes]:
    import sklearn.datasets

    packed = Path(sklearn.datasets.__file__).parent / "data" / "digits.csv.gz"
    return iter([gzip.decompress(packed.read_bytes())])


DOMAINS: dict[str, Callable[[], Iterator[bytes]]] = {
    "english": _read_english,
    "grammar": lambda: (sentence.encode() for sentence in generate_sentences(SEED)),
    "math": lambda: (equation.encode() for equation in generate_equations(SEED)),
    "python": _read_python,
    "tables": _read_tables,
}
