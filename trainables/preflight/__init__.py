"""The audit of a training task before its trials: what is wrong, with which parameter, by how much, and what helps."""
