"""Turns that clients wait for: taken once, read by whoever asked for the same. The event loop's
thread."""
