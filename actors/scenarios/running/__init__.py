"""A scenario as it runs: its steps in the order of the file, and what each waits for."""
