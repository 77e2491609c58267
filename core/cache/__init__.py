"""Tensor-free bookkeeping of what is cached where; importing it loads no MLX."""
