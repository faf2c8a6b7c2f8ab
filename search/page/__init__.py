"""report.html: one self-contained file that says in a minute what came of a search."""

import shlex
from collections.abc import Callable

from search.searched import Searched
from search.shown import report_again
from search.whole import write_whole
from trainables.filesystem.paths import Place


def write_page(searched: Searched, path: Place) -> None:
    """Write the page of a search to `path` in its folder, all of it or nothing.

    Raises:
        OSError: It cannot be written.
    """
    from search.page.contents import html_of  # plotly takes its time, and nothing else needs it

    command = f"python search/run.py --config {shlex.quote(str(path.with_name('search.yaml')))}"
    write_whole(path, html_of(searched, command))


def save_page(searched: Searched, path: Place, say: Callable[[str], None]) -> bool:
    """The same; that it cannot be written is told in a line, and keeps nobody from going on. Whether it was written."""
    try:
        write_page(searched, path)
    except Exception as error:  # a full disk, or what nobody thought of: the search is worth more than its page
        again = f"{report_again(path.parent)} writes it again"
        say(f"{path} cannot be written: {type(error).__name__}: {error}; {again}")
        return False
    return True
