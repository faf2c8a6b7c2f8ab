"""What benchmarks/search_quality.py is made of: problems, the sides that search them, a simulated clock."""
