"""What users asked of the running search."""

from datetime import datetime

from searchlight.search.reporting.html.template import Section
from searchlight.search.study.record import SearchRecord


def build(record: SearchRecord) -> Section | None:
    """Return the log of commands, or None if there were none."""
    if not record.commands:
        return None
    rows = [["when", "who", "command", "effect", "reason"]]
    for entry in record.commands:
        made, answer = entry.command, entry.answer
        effect = answer.effect if answer.accepted else f"refused: {answer.effect}"
        when = f"{datetime.fromtimestamp(made.at):%-d %B, %H:%M}"
        rows.append([when, made.author, made.operation, "; ".join([effect, *answer.warnings]), made.why])
    return Section(
        "Commands", "The search was changed while it ran, so it is no longer that of its command.", table=rows
    )
