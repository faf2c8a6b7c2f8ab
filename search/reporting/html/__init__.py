"""The report of a search as one HTML file."""

from searchlight.search.reporting.html.report import try_write_report, write_report

__all__ = ["try_write_report", "write_report"]
