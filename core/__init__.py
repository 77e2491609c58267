"""The engine's parts. Public paths are `errors`, `trace`, `blas` and `batch`; the rest stands
in rooms."""
