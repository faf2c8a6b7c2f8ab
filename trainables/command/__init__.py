"""Runs a user's program as a trial: fills its command with the trial's values, and listens to what it reports."""
