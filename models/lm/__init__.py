"""A small language model of bytes."""
