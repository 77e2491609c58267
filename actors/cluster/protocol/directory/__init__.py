"""The directory of a cluster: it writes a change down, and then acts upon it."""
