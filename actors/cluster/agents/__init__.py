"""The handle of an agent of a cluster, and how it is asked. Any thread; what is asked runs on the
cluster's loop."""
