"""The report of a search as one HTML file."""

from search.reporting.html.report import save_page, write_page

__all__ = ["save_page", "write_page"]
