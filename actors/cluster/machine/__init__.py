"""A process as a part of a cluster: its clock, its journals, a loop on a thread of its own, its
AgentSystem as a node, and what handles call through. Knows no Ray."""
