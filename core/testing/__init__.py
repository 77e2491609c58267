"""Models, tokenizers and engines for tests, public."""
