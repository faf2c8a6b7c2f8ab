"""Writes the tables of findings in docs/preflight.md: python -m searchlight.trainables.preflight.findings_table.

Names, severities and remedies are those that the checks declare. The examples are written by hand, and stay.
"""

import re
from pathlib import Path

import searchlight.trainables.preflight.audit  # noqa: F401, which imports all checks
from searchlight.trainables.preflight.findings import SECTIONS, SEVERITIES, Kind

FILE = Path(__file__).resolve().parents[2] / "docs" / "preflight.md"
HEAD = "| finding | severity | example | remedy |\n| --- | --- | --- | --- |\n"


def format_page(page: str) -> str:
    """Return `page` with a row for each kind of finding, the most severe first. A new kind has no example yet."""
    examples = dict(re.findall(r"^\| `([^`]+)` \| \w+ \| (.*) \| [^|]+ \|$", page, re.MULTILINE))
    title, *sections = page.split("\n## ")
    for index, section in enumerate(sections):
        if kinds := SECTIONS.get(section.partition("\n")[0]):
            ordered = sorted(kinds.values(), key=lambda kind: (SEVERITIES.index(kind.severity), kind.name))
            rows = "".join(_format_row(kind, examples.get(kind.name, "")) for kind in ordered)
            before, _, table = section.partition(HEAD)
            after = "".join(line for line in table.splitlines(keepends=True) if not line.startswith("|"))
            sections[index] = before + HEAD + rows + after
    return "\n## ".join([title, *sections])


def _format_row(kind: Kind, example: str) -> str:
    return f"| `{kind.name}` | {kind.severity} | {example} | {kind.remedy} |\n"


if __name__ == "__main__":
    FILE.write_text(format_page(FILE.read_text(encoding="utf-8")), encoding="utf-8")
