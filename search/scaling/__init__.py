"""Searches at small sizes for the parameters of a large one."""
