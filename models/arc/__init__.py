"""In-context grid models for ARC-AGI-1."""
