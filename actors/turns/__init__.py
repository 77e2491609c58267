"""One turn as data between asker and actors: prompt, ticket, messages, reply, stream."""
