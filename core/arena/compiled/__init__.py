"""A decode step as a graph that is traced once and replayed: the very operations of an eager step,
none of them fused, on other arrays. GPU thread only."""
