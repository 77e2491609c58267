"""What precision and restarts cost in answers."""
