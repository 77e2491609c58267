"""The agents of one node of a cluster: an AgentSystem and its store, as the protocol sees them. On
the thread of one asyncio loop."""
