"""Output of a search: in the terminal, as an HTML report and as a Parquet file."""
