"""Attention as an op of torch, for who exports models [cache-family, 3.1]. Torch and executorch,
the extra `export`, are known here alone; nobody imports this room. A thread for each program."""
