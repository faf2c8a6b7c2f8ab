"""Names the objectives of the tests' searches."""

from searchlight.search.space.objectives import Objective

VAL_LOSS = Objective("val/loss", "min")
VAL_SCORE = Objective("val/score", "max")
