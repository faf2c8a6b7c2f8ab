"""MLflow follows a search: what it is told, when it is away, and what is told again."""
