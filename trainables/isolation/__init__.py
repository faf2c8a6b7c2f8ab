"""Restores the state of a worker process between two trials."""
