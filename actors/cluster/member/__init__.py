"""A process as a node of a cluster, and the behaviours of its agents. The node on one asyncio loop,
behaviours on the threads of its system."""
