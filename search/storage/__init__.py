"""The stores of a study: a journal, SQLite or PostgreSQL, each written by one driver at a time."""
