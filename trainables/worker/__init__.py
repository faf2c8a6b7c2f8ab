"""The code that every Ray Train worker runs."""
