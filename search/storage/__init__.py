"""Where a study is kept: a journal, SQLite or PostgreSQL."""
