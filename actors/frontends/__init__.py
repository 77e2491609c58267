"""What people start: the command line, and the stress run. On the main thread."""
