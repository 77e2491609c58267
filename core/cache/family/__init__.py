"""The cache family: which token stands in which cell, and what it sees. Integers only; loads
neither MLX nor NumPy [cache-family, 4.1, 4.2]. Whoever owns a cache calls it on one thread."""
