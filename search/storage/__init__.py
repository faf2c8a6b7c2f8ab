"""The storages of a study: a journal, SQLite or PostgreSQL."""
