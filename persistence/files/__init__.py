"""File formats and atomic operations; knows no agent's state."""
