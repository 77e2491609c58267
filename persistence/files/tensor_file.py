"""The safetensors container: tensors as raw bytes with metadata, both ways. Pure: any thread.

The 8-byte length, the JSON header and the offsets are written and checked here, and
the tests hold them against the safetensors library in both directions. The library
itself is not called: its `serialize` (0.8) wants raw memory addresses and copies all
tensors into one buffer, `deserialize` copies twice and gives neither the metadata nor
the order. Read here, each tensor is copied once, from the file into its own bytes.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Protocol

from kvactors.core.cache.segment import RawTensor
from kvactors.persistence.errors import TensorFileUnreadable
from kvactors.persistence.files.atomic import Buffer
from kvactors.persistence.files.packing import unique

__all__ = ["Readable", "encode_tensors", "read_tensors", "tensor_names"]

_LENGTH = struct.Struct("<Q")
# A 64-layer segment has a header of about 50 kB; a hostile one is refused unread.
_MAX_HEADER = 16 << 20
_MAX_DIMS = 16
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


class Readable(Protocol):
    """What a container is read from."""

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes, fewer at the end."""
        ...

    def tell(self) -> int:
        """How many were read."""
        ...


def encode_tensors(tensors: Sequence[RawTensor], metadata: Mapping[str, str]) -> list[Buffer]:
    """The file's chunks: the header, then each tensor's bytes, uncopied.

    Raises TensorFileUnreadable if the tensors contradict themselves.
    """
    entries: dict[str, Any] = {"__metadata__": dict(metadata)}
    for name, dtype, shape, data in tensors:
        if name in entries or _tensor_bytes(dtype, list(shape)) != len(data):
            raise TensorFileUnreadable(
                f"tensor {name!r} is named twice or its {len(data)} bytes are not {dtype} {shape}"
            )
        entries[name] = {"dtype": dtype, "shape": list(shape)}
    # Wide items first keeps every tensor aligned; the header keeps the caller's order.
    stored = sorted(tensors, key=lambda tensor: -_ITEM_BYTES[tensor[1]])
    offset = 0
    for name, _, _, data in stored:
        entries[name]["data_offsets"] = [offset, offset + len(data)]
        offset += len(data)
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > _MAX_HEADER:
        raise TensorFileUnreadable(f"a header of {len(header)} bytes exceeds {_MAX_HEADER}")
    return [_LENGTH.pack(len(header)) + header, *(data for _, _, _, data in stored)]


def read_tensors(
    file: Readable, size: int, seen: Callable[[bytes], None] = lambda _: None
) -> tuple[dict[str, Any], tuple[RawTensor, ...]]:
    """Metadata and tensors, in the header's order, of a container of `size` bytes.

    `seen` is given every byte that is read, in order. Raises TensorFileUnreadable for
    whatever is wrong with the content. No header is believed: nothing larger than the
    file is ever allocated.
    """
    header = _read_header(file, size, seen)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise TensorFileUnreadable("the metadata is no JSON object")
    found: dict[str, bytes] = {}
    for begin, end, name in _file_order(header, size - file.tell()):
        found[name] = file.read(end - begin)
        seen(found[name])
    tensors = tuple(
        (name, str(entry["dtype"]), tuple(entry["shape"]), found[name])
        for name, entry in header.items()
    )
    return metadata, tensors


def tensor_names(file: Readable, size: int) -> list[str]:
    """The names of the tensors in a container of `size` bytes: its header alone is read. Raises
    TensorFileUnreadable."""
    return [name for name in _read_header(file, size, lambda _: None) if name != "__metadata__"]


def _read_header(file: Readable, size: int, seen: Callable[[bytes], None]) -> dict[str, Any]:
    prefix = file.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        raise TensorFileUnreadable("too short for a header")
    (length,) = _LENGTH.unpack(prefix)
    if length > min(_MAX_HEADER, size - _LENGTH.size):
        raise TensorFileUnreadable(f"a header of {length} bytes in a file of {size}")
    raw = file.read(length)
    seen(prefix)
    seen(raw)
    try:
        header = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise TensorFileUnreadable(f"the header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise TensorFileUnreadable("the header is no JSON object")
    return header


def _file_order(header: dict[str, Any], size: int) -> list[tuple[int, int, str]]:
    """(begin, end, name) of each tensor in file order; they cover `size` bytes exactly."""
    order = []
    for name, entry in header.items():
        begin, end = _offsets(name, entry)
        if _tensor_bytes(entry.get("dtype"), entry.get("shape")) != end - begin:
            raise TensorFileUnreadable(f"tensor {name!r}: dtype and shape do not fit its bytes")
        order.append((begin, end, name))
    order.sort()
    position = 0
    for begin, end, name in order:
        if begin != position:
            raise TensorFileUnreadable(f"tensor {name!r} begins at {begin}, not at {position}")
        position = end
    if position != size:
        raise TensorFileUnreadable(f"tensors cover {position} of {size} bytes")
    return order


def _offsets(name: str, entry: Any) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or [type(item) for item in offsets] != [int, int]:
        raise TensorFileUnreadable(f"tensor {name!r} has no offsets")
    begin, end = offsets
    if not 0 <= begin <= end:
        raise TensorFileUnreadable(f"tensor {name!r} spans [{begin}, {end})")
    return begin, end


def _tensor_bytes(dtype: Any, shape: Any) -> int | None:
    """Bytes of a tensor, or None if dtype or shape is not one."""
    item = _ITEM_BYTES.get(dtype) if isinstance(dtype, str) else None
    if item is None or not isinstance(shape, list) or len(shape) > _MAX_DIMS:
        return None
    if not all(type(dim) is int and 0 <= dim < 1 << 48 for dim in shape):
        return None
    return item * prod(shape)
