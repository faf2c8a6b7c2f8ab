"""The findings of the task's audit before the first trial."""

from searchlight.search.reporting.html.template import Section
from searchlight.search.study.record import SearchRecord


def build(searched: SearchRecord) -> Section | None:
    """Return a table of the findings, or None without findings."""
    audit = searched.about.get("preflight")
    if not audit or not audit["findings"]:
        return None
    head = ("severity", "finding", "subject", "figure", "remedy")
    rows = [
        (found["severity"], found["name"], found["subject"], found["figure"], found["remedy"])
        for found in audit["findings"]
    ]
    took = sum(audit["seconds"].values())
    says = f"The first worker audited the task on {audit['device']} before its first trial, in {took:.1f} s."
    return Section("Preflight", says, table=[head, *rows])
