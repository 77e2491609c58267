"""What the write-up and the paper measured, again: one command an experiment, with its table."""
