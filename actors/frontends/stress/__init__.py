"""Many agents at once, and what their answers must be. On the main thread."""
