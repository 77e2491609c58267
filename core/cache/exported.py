"""KV as it crosses threads and files: bytes, never arrays. No MLX."""

from dataclasses import dataclass

__all__ = ["ExportedKV", "RawTensor"]

RawTensor = tuple[str, str, tuple[int, ...], bytes | memoryview]
"""Name, safetensors dtype name, shape, little-endian bytes."""


@dataclass(frozen=True, slots=True)
class ExportedKV:
    """KV of tokens [start, end) as raw tensors.

    `tokens_hash` covers the token ids [0, end); `layout` describes the layers.
    """

    start: int
    end: int
    tokens_hash: str
    layout: str
    tensors: tuple[RawTensor, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(len(data) for *_, data in self.tensors)
