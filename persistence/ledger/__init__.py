"""The truth: frames, and the folder of ledgers."""
