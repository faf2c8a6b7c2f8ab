"""Samplers propose the hyperparameters of a trial."""
