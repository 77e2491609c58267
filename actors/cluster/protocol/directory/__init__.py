"""The directory of a cluster, on the thread of one loop: it writes a change down, and then acts."""
