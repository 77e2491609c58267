"""Sessions: an mlx-lm model whose layers keep all tokens over a cache of the family, for loops that
are not the engine's. The bytes are an arena's row, there is no second layer of them [cache-family,
4.3]. One thread each."""
