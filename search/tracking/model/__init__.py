"""The best checkpoint as a model in MLflow."""
