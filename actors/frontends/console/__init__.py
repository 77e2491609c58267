"""Where commands write, and the key that they read. The main thread."""
