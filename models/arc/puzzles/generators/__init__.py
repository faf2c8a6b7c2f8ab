"""Puzzles that are generated: families of rules, and the generator that draws from them."""
