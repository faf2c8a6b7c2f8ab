"""The parts of benchmarks/search_quality.py: problems, the sides that search them, and a simulated clock."""
