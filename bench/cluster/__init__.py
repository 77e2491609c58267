"""Lines of several machines: what a cluster adds to a turn, a move, a loss, and what it knows."""
