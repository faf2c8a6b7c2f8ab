"""Fits the pages of docs/, which are written for GitHub, to the site of mkdocs."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?P<up>(?:\.\./)+)(?P<path>[^)#]+)(?:#[^)]*)?\)")
# "0.54 [0.47, 0.64] [0.41, 0.72]" has intervals, and is no reference of Markdown.
INTERVAL = re.compile(r"(?<=\]) \[(?=-?[\d.]+, |seeds )")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return the page with links to files of the repository, such as examples, led to copies in the site."""
    depth = page.file.src_uri.count("/")

    def lead(match: re.Match[str]) -> str:
        path = ROOT / match["path"]
        if match["up"].count("../") <= depth or not path.is_file():
            return match[0]
        name = f"repository/{match['path']}{'.txt' if path.suffix == '.md' else ''}"  # it is no page of the site
        if files.get_file_from_path(name) is None:
            files.append(File.generated(config, name, abs_src_path=str(path)))
        return f"]({'../' * depth}{name})"

    return INTERVAL.sub(r" \\[", LINK.sub(lead, markdown))
