"""Parquet files with a row per key, to which missing rows are added."""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from searchlight.trainables.filesystem.atomic_file import atomic_path

SAVE_EVERY_S = 20.0
Key = TypeVar("Key", bound=Hashable)
Row = dict[str, Any]


def load_table(file: Path) -> list[Row]:
    """Return the rows of `file`, or an empty list if it does not exist."""
    return pq.read_table(file).to_pylist() if file.exists() else []


def save_table(file: Path, rows: Iterable[Row], schema: pa.Schema) -> None:
    """Replace `file` by one with `rows`."""
    with atomic_path(file) as path:
        pq.write_table(pa.Table.from_pylist(list(rows), schema), path, compression="zstd")


def fill_table(
    file: Path,
    schema: pa.Schema,
    rows: Mapping[Key, Row],
    keys: Sequence[Key],
    make_row: Callable[[Key], Row],
    processes: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> list[Row]:
    """Make the rows of those `keys` that are missing in `rows`, the content of `file`. Return the rows of `keys`.

    Processes take the keys in order. When a row is done, all are saved if the last save is SAVE_EVERY_S seconds old.
    They are also saved at the end and on an interrupt. Rows are sorted by key.
    """
    found = dict(rows)
    missing = [key for key in keys if key not in found]
    saved = time.monotonic()
    try:
        for count, (key, row) in enumerate(_make_rows(make_row, missing, processes), 1):
            found[key] = row
            say(f"{count} of {len(missing)}")
            if time.monotonic() - saved > SAVE_EVERY_S:
                _save_sorted(file, found, schema)
                saved = time.monotonic()
    finally:
        if missing:
            _save_sorted(file, found, schema)
    return [found[key] for key in keys]


def _save_sorted(file: Path, rows: Mapping[Any, Row], schema: pa.Schema) -> None:
    save_table(file, [rows[key] for key in sorted(rows)], schema)


class _Keyed:
    """A function that returns a row with its key, since rows of several processes arrive in any order."""

    def __init__(self, make_row: Callable[[Any], Row]) -> None:
        self._make_row = make_row

    def __call__(self, key: Any) -> tuple[Any, Row]:
        return key, self._make_row(key)


def _make_rows(make_row: Callable[[Key], Row], keys: Sequence[Key], processes: int) -> Iterator[tuple[Key, Row]]:
    if processes == 1:
        yield from map(_Keyed(make_row), keys)
        return
    with get_context("spawn").Pool(processes) as pool:  # threads of Ray and torch do not survive a fork
        yield from pool.imap_unordered(_Keyed(make_row), keys)
