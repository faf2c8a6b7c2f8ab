"""What the trials of a search show."""
