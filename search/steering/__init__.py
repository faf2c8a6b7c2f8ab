"""Commands to a running search: what users ask of its driver, and what the driver answers."""
