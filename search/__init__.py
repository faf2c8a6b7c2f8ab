"""What to try next: the command line, the search space, the study, and the gangs that train its trials."""
