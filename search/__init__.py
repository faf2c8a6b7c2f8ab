"""The hyperparameter search: the command line, the search space, the study, and the gangs that train trials."""
