"""Writes docs/options.md: python -m search.config.options_table."""

import itertools
from pathlib import Path

from search.config.option import Option
from search.config.search_config import OPTIONS

FILE = Path(__file__).resolve().parents[2] / "docs" / "options.md"
HEAD = """# Options of a search

`python -m search.config.options_table` writes this page. Each option is also a key of a YAML file for `--config FILE`,
which the command line overrides. An option that is marked with `--resume` may change when
[a search is resumed](resume.md). `python search/run.py --help` lists the options for one call, too.
"""


def format_options_page() -> str:
    """Return the text of docs/options.md."""
    lines = [HEAD]
    for group, options in itertools.groupby(OPTIONS, key=lambda option: option.group):
        lines += [f"## {group}\n", "| option | key | meaning | changeable |", "| --- | --- | --- | --- |"]
        lines += [*map(_format_row, options), ""]
    return "\n".join(lines)


def _format_row(option: Option) -> str:
    name = f"`{option.name} {option.metavar}".strip() + "`" if option.is_on_command_line else ""
    resumable = "`--resume`" if option.resumable else ""
    cells = (cell.replace("|", r"\|") for cell in (name, f"`{option.key}`", option.help, resumable))
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    FILE.write_text(format_options_page(), encoding="utf-8")
