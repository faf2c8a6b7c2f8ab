"""The study of a search and its trials."""
