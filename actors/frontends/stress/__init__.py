"""Many agents at once, and what their answers must be."""
