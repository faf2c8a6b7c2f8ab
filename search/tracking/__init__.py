"""Reports a search to MLflow: runs, metrics and models, and events that could not be sent."""
