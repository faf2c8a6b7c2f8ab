"""The training of one trial: epochs, evaluation, metrics and prediction."""
