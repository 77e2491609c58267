"""The page at `/`: three static files, and nothing of another host. Any thread."""
