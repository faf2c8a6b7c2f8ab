"""Runs inside a user's program, whose PYTHONPATH has this folder: standard library only, Python 3.8 or newer."""
