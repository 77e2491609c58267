"""How queries meet stored keys, and the seams through which mlx-lm calls us; knows no Pool. GPU
thread, but for `policy`, which any thread may read."""
