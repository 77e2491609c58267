"""One agent: the handle that users hold, and the actor behind it. The handle belongs to any thread;
the actor, and what it plans, to one pool thread at a time."""
