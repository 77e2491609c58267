"""Loading a model and finding out what it is; `options` and `info` load no MLX."""
