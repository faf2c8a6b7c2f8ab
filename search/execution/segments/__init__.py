"""The segments of trials: how far trials have come, and what gangs train next."""
