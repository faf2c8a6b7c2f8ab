"""report.html: one self-contained file that says in a minute what came of a search."""
