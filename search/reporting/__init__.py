"""Shows a search: in the terminal, as a page and as a Parquet file."""
