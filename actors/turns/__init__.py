"""One turn as data between asker and actors: prompt, ticket, messages, reply, stream. Any thread:
messages never change, futures settle once, a stream belongs to the thread that reads it."""
