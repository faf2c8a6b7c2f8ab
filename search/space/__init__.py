"""The vocabulary of a search: parameters and their ranges, objectives, and the unit of a trial's budget."""
