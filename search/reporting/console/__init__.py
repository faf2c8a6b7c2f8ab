"""Output of a search in a terminal."""
