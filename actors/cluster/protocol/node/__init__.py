"""A node of a cluster: owner of some agents, under a lease, and replica of others."""
