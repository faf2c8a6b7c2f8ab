"""Prints an audit: a line for each finding, the most severe first, and the cost of the task."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from searchlight.search.analysis.cost_estimate import CostEstimate
from searchlight.search.formatting import format_bytes, format_duration, pluralize
from searchlight.search.reporting.console.tables import build_details, print_line

STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}


def format_finding(finding: Mapping[str, Any]) -> str:
    """Return a finding without its severity: its name, subject, figure and remedy."""
    where = f" ({finding['where']})" if finding["where"] else ""
    figure = finding["figure"].removesuffix(".")  # the message of an exception may be a whole sentence
    return f"{finding['name']}  {finding['subject']}: {figure}{where}. {finding['remedy']}"


def print_audit(console: Console, audit: Mapping[str, Any], estimate: CostEstimate | None) -> None:
    """Print the findings of an audit, given as JSON, and the cost of the whole search."""
    for finding in audit["findings"]:
        line = Text.assemble((f"{finding['severity']:<8}", STYLES[finding["severity"]]), format_finding(finding))
        console.print(line, highlight=False, soft_wrap=True)
    for rows in filter(None, (list_costs(audit["costs"]), list_modes(audit["modes"]))):
        console.print(build_details(rows))
    if estimate is not None:
        print_line(console, f"the search: {format_estimate(estimate)}")
    print_line(console, f"{format_summary(audit)} on {audit['device']}")


def format_summary(audit: Mapping[str, Any]) -> str:
    """Return the number of an audit's findings by severity."""
    severities = [finding["severity"] for finding in audit["findings"]]
    counts = [pluralize(severities.count(s), s) for s in STYLES if s in severities]
    return f"preflight: {', '.join(counts) or 'nothing found'}"


def list_costs(costs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a table of each config's cost per epoch, the head first, or an empty list."""
    head = ["config", "precision", "samples per micro-batch", "s per epoch", "evaluation s", "build s", "peak memory",
            "largest micro-batch"]  # fmt: skip
    rows = [
        [
            cost["where"] or "defaults",
            str(cost["precision"]),
            str(cost["samples"]),
            "-" if cost["epoch_s"] is None else f"{'' if cost['measured'] else '~'}{cost['epoch_s']:.3g}",
            f"{cost['evaluate_s']:.2g}",
            f"{cost['build_s']:.2g}",
            format_bytes(cost["peak_bytes"]),
            "-" if cost["largest"] is None else f"~{cost['largest']}",
        ]
        for cost in costs
    ]
    return [head, *rows] if rows else []


def list_modes(modes: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return a table of the measurements of each precision, the head first, or an empty list."""
    head = ["precision", "ms", "activations", "products in it", "loss error", "cosine", "vanished", "loss scale"]
    rows = [
        [
            str(mode["precision"]),
            f"{1000 * mode['seconds']:.3g}",
            format_bytes(mode["saved_bytes"]),
            f"{mode['products']:.0%}",
            f"{mode['loss_error']:.2g}",
            f"{mode['cosine']:.4f}",
            f"{mode['underflow']:.2g}",
            f">= {mode['smallest_scale']:g}" if mode["precision"] == "fp16" else "-",
        ]
        for mode in modes
    ]
    return [head, *rows] if rows else []


def format_estimate(estimate: CostEstimate) -> str:
    """Return the time of a search and its device hours."""
    low, high = (format_duration(seconds) for seconds in estimate.seconds)
    duration = f"about {low}" if low == high else f"{low} to {high}"
    return f"{duration}, {_range(estimate.device_hours)} {estimate.unit}"


def _range(bounds: tuple[float, float]) -> str:
    low, high = (f"{bound:.3g}" for bound in bounds)
    return low if low == high else f"{low} to {high}"
