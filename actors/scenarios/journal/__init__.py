"""What a run leaves: its records, and the file that they are appended to."""
