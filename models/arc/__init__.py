"""ARC puzzles: their data, a grid model that answers them under prompts, a policy that refines these, and scores."""
