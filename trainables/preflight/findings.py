"""The findings of an audit, and their kinds, each with its severity and its remedy. Each check declares its own kinds.

`python -m searchlight.trainables.preflight.audit` imports all checks and writes the tables of docs/preflight.md. The
examples there are written by hand, and stay.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from searchlight.trainables.registry import describe_missing_file

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


class Kind(NamedTuple):
    """A kind of finding. `severity` is the usual one; a finding may have another one."""

    name: str
    severity: Severity
    remedy: str


KINDS: dict[str, Kind] = {}
SECTIONS: dict[str, dict[str, Kind]] = {}  # by their heading in docs/preflight.md
MOST = 5  # parameters that one finding names
PAGE = Path(__file__).resolve().parents[2] / "docs" / "preflight.md"
HEAD = "| finding | severity | example | remedy |\n| --- | --- | --- | --- |\n"


def declare_kinds(section: str, *kinds: Kind) -> None:
    """Add the kinds of findings of one file. `section` is the heading of docs/preflight.md that lists them."""
    for kind in kinds:
        assert KINDS.setdefault(kind.name, kind) == kind, f"two files must not declare {kind.name} differently"
        SECTIONS.setdefault(section, {})[kind.name] = kind


declare_kinds("Parts that were not audited", Kind("not-audited", "note", "The audit does not cover this part."))


@dataclass(frozen=True)
class Finding:
    """A finding of an audit.

    Attributes:
        name: The kind, a key of KINDS.
        subject: The parameter, module, mode or part of the task.
        figure: The measured value, or the message of an error.
        where: The configs that have the finding, or "" for the defaults.
    """

    severity: Severity
    name: str
    subject: str
    figure: str
    remedy: str
    where: str = ""

    def __str__(self) -> str:
        where = f" ({self.where})" if self.where else ""
        return f"{self.severity} {self.name}: {self.subject}: {self.figure}{where}. {self.remedy}"


def make_finding(name: str, subject: str, figure: str, severity: Severity | None = None, where: str = "") -> Finding:
    """Return a finding of kind `name`."""
    kind = KINDS[name]
    return Finding(severity or kind.severity, name, subject, figure, kind.remedy, where)


def describe_error(error: BaseException) -> str:
    """Return the type of `error`, the first line of its message, and a remedy if there is one."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}{describe_missing_file(error)}"


def make_group(kind: str, names: Sequence[str], figure: str, severity: Severity | None = None) -> list[Finding]:
    """Return one finding about all of `names`, or none if there is no name."""
    if not names:
        return []
    more = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return [make_finding(kind, ", ".join(names[:MOST]) + more, figure, severity)]


def sort_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first finding of each kind about each subject, the most severe first."""
    first: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        first.setdefault((finding.name, finding.subject), finding)
    return sorted(first.values(), key=lambda finding: SEVERITIES.index(finding.severity))


def has_errors(findings: Iterable[Finding]) -> bool:
    """Return whether a search with these findings must not start."""
    return any(finding.severity == "error" for finding in findings)


def format_page(page: str) -> str:
    """Return `page` with a row for each kind of finding, the most severe first. A new kind has no example yet."""
    examples = dict(re.findall(r"^\| `([^`]+)` \| \w+ \| (.*) \| [^|]+ \|$", page, re.MULTILINE))
    title, *sections = page.split("\n## ")
    for index, section in enumerate(sections):
        if kinds := SECTIONS.get(section.partition("\n")[0]):
            ordered = sorted(kinds.values(), key=lambda kind: (SEVERITIES.index(kind.severity), kind.name))
            rows = (
                f"| `{name}` | {level} | {examples.get(name, '')} | {remedy} |\n" for name, level, remedy in ordered
            )
            before, _, table = section.partition(HEAD)
            after = "".join(line for line in table.splitlines(keepends=True) if not line.startswith("|"))
            sections[index] = before + HEAD + "".join(rows) + after
    return "\n## ".join([title, *sections])
