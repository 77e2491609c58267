"""The HTTP server: every client's conversation is an agent that remembers. The event loop's
thread, but for what says otherwise."""
