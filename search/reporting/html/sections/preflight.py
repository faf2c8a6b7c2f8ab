"""The findings of the task's audit before the first trial."""

from searchlight.search.reporting.html.template import Section
from searchlight.search.study.record import SearchRecord


def build(record: SearchRecord) -> Section | None:
    """Return a table of the findings after the notes of the search's plan, or None without both."""
    audit, notes = record.about.get("preflight"), "\n".join(record.about.get("notes", ()))
    if not audit or not audit["findings"]:
        return Section("Preflight", notes) if notes else None
    head = ("severity", "finding", "subject", "figure", "remedy")
    rows = [
        (found["severity"], found["name"], found["subject"], found["figure"], found["remedy"])
        for found in audit["findings"]
    ]
    took = sum(audit["seconds"].values())
    says = f"The first worker audited the task on {audit['device']} before its first trial, in {took:.1f} s."
    return Section("Preflight", "\n".join(filter(None, [notes, says])), table=[head, *rows])
