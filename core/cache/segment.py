"""Segment: KV as it crosses threads and stands in files, as bytes, never arrays. No MLX."""

from dataclasses import dataclass

__all__ = ["RawTensor", "Segment"]

RawTensor = tuple[str, str, tuple[int, ...], bytes | memoryview]
"""Name, safetensors dtype name, shape, little-endian bytes."""


@dataclass(frozen=True, slots=True)
class Segment:
    """KV of tokens [start, end), half-open. Immutable."""

    start: int
    end: int
    tokens_hash: str
    """Of the token ids [0, end); the store keeps it and gives it back untouched."""
    layout: str
    """JSON on every layer: kind, dims, bits, group size, scale dtype."""
    tensors: tuple[RawTensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(len(data) for *_, data in self.tensors)
