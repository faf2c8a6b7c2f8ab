"""Runs in the interpreter of a user's program: standard library only, Python 3.8 or newer."""
