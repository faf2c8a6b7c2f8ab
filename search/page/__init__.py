"""report.html: one self-contained file that says in a minute what came of a search."""

import shlex
from pathlib import Path

from search.searched import Searched


def write_page(searched: Searched, folder: Path) -> Path:
    """Write the report.html of the search in `folder`, all of it or nothing.

    Returns:
        Where it is.

    Raises:
        OSError: It cannot be written.
    """
    from search.page.contents import html_of  # plotly takes its time, and nothing else needs it

    path = folder / "report.html"
    temporary = path.with_suffix(".tmp")
    command = f"python search/run.py --config {shlex.quote(str(folder / 'search.yaml'))}"
    try:
        temporary.write_text(html_of(searched, command), encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)  # what a full disk left of it
    return path
