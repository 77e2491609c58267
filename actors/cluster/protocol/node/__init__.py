"""A node of a cluster, on the thread of one loop: owner of some agents, under a lease, and replica
of others."""
