"""msgpack, both ways, and maps without a key that is there twice. Pure: any thread."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]

__all__ = ["pack", "unique", "unpack"]


def pack(value: Any) -> bytes:
    """msgpack of a value; lone surrogates pass. TypeError or ValueError if it has no form."""
    packed: bytes = msgpack.packb(value, unicode_errors="surrogatepass")
    return packed


def unpack(payload: bytes) -> Any:
    """Value of one msgpack object; raises ValueError whatever is wrong with the bytes."""
    try:
        return msgpack.unpackb(
            payload,
            unicode_errors="surrogatepass",
            strict_map_key=False,
            object_pairs_hook=unique,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"not msgpack: {error}") from error


def unique(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """A map from its pairs; ValueError for a key that is there twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found
