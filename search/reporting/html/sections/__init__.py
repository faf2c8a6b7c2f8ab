"""The sections of the report. Each file has a function `build` from a search to a section or None."""
