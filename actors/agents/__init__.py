"""One agent: the handle that users hold, and the actor behind it."""
