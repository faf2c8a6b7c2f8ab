"""Fits the pages of docs/, which are written for GitHub, to the site of mkdocs, and adds two of other folders."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "overview.md", "examples/README.md": "examples.md"}  # pages of the site, by their source
LINK = re.compile(r"\]\((?P<up>(?:\.\./)+)(?P<path>[^)#]+)(?P<anchor>#[^)]*)?\)")
RELATIVE = re.compile(r"\]\((?!\w+:|#)(?P<path>[^)]+)\)")
# "0.54 [0.47, 0.64] [0.41, 0.72]" has intervals, and is no reference of Markdown.
INTERVAL = re.compile(r"(?<=\]) \[(?=-?[\d.]+, |seeds )")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/, with links as if they lay there."""
    for source, name in PAGES.items():

        def move(match: re.Match[str], folder: str = posixpath.dirname(source)) -> str:
            path = posixpath.normpath(posixpath.join(folder, match["path"]))
            is_link = (ROOT / path.partition("#")[0]).exists()  # and no code, such as f["x"](y)
            return f"]({posixpath.relpath(path, 'docs')})" if is_link else match[0]

        files.append(File.generated(config, name, content=RELATIVE.sub(move, (ROOT / source).read_text("utf-8"))))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the page with links to files of the repository, such as examples, led to copies in the site.

    What is for those who change Searchlight comes last in the results of the search.
    """
    depth = page.file.src_uri.count("/")
    if page.file.src_uri.startswith("development/"):
        page.meta["search"] = {"boost": 0.5}

    def lead(match: re.Match[str]) -> str:
        path, up = ROOT / match["path"], "../" * depth
        if match["up"].count("../") <= depth or not path.is_file():
            return match[0]
        if match["path"] in PAGES:
            return f"]({up}{PAGES[match['path']]}{match['anchor'] or ''})"
        name = f"repository/{match['path']}{'.txt' if path.suffix == '.md' else ''}"  # it is no page of the site
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(path)))
        return f"]({up}{name})"

    return INTERVAL.sub(r" \\[", LINK.sub(lead, markdown))
