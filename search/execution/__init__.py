"""Runs trials on Ray: the searcher, gangs of workers, checkpoints and failures."""
