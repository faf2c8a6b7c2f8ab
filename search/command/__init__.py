"""The command that a search runs: its options, and what is known of its program before Ray starts."""
