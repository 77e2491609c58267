"""Segments: KV of a token range as one immutable safetensors file.

The 8-byte length, the JSON header and the offsets are written and checked here, and
the tests hold them against the safetensors library in both directions. The library
itself is not called: its `serialize` (0.8) wants raw memory addresses and copies all
tensors into one buffer, `deserialize` copies twice and gives neither the metadata nor
the order. Read here, each tensor is copied once, from the file into its own bytes.

In an encrypted store the whole file is sealed (sealing.py), for its fingerprint and content,
so that agents can share it, and its digest is a keyed one.

Metadata (all strings): `format` "kvactors-segment", `version` "1", `start`, `end`,
`tokens_hash`, `layout`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Protocol

import xxhash

from kvactors.persistence.errors import NewerFormat, SegmentUnreadable
from kvactors.persistence.reading import NotAFile, open_file, unique
from kvactors.persistence.sealing import BrokenSeal, SealedReader, Sealing

__all__ = ["RawTensor", "Segment", "encode_segment", "read_segment", "seal_segment"]

RawTensor = tuple[str, str, tuple[int, ...], bytes]
"""Name, safetensors dtype ("U32", "F16", "BF16", ...), shape, little-endian bytes."""

VERSION = "1"
_FORMAT = "kvactors-segment"
_LENGTH = struct.Struct("<Q")
# A 64-layer segment has a header of about 50 kB; a hostile one is refused unread.
_MAX_HEADER = 2 << 20
_MAX_DIMS = 16
_ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64"), 8),
}


@dataclass(frozen=True, slots=True)
class Segment:
    """KV of tokens [start, end), half-open. Immutable: bytes, no arrays."""

    start: int
    end: int
    tokens_hash: str
    """The caller's hash of the token ids [0, end): kept and given back untouched."""
    layout: str
    """The caller's JSON on every layer: kind, dims, bits, group size, scale dtype."""
    tensors: tuple[RawTensor, ...]


def encode_segment(
    segment: Segment, sealing: Sealing | None = None
) -> tuple[list[bytes], str, int]:
    """The file of a segment: its chunks (tensors uncopied), xxh3_128 digest and size in bytes.

    With `sealing` the chunks are still plain (`seal_segment` seals them); the digest is the
    keyed one, the size that of the sealed file.

    Raises SegmentUnreadable if the tensors contradict themselves, before any write.
    """
    entries: dict[str, Any] = {"__metadata__": _metadata(segment)}
    for name, dtype, shape, data in segment.tensors:
        if name in entries or _tensor_bytes(dtype, list(shape)) != len(data):
            raise SegmentUnreadable(
                f"tensor {name!r} is named twice or its {len(data)} bytes are not {dtype} {shape}"
            )
        entries[name] = {"dtype": dtype, "shape": list(shape)}
    # Wide items first keeps every tensor aligned; the header keeps the caller's order.
    stored = sorted(segment.tensors, key=lambda tensor: -_ITEM_BYTES[tensor[1]])
    offset = 0
    for name, _, _, data in stored:
        entries[name]["data_offsets"] = [offset, offset + len(data)]
        offset += len(data)
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > _MAX_HEADER:
        raise SegmentUnreadable(f"a header of {len(header)} bytes exceeds {_MAX_HEADER}")
    chunks = [_LENGTH.pack(len(header)) + header, *(data for _, _, _, data in stored)]
    digest, size = _digest(chunks), len(chunks[0]) + offset
    if sealing is not None:
        return chunks, sealing.content_name(digest), sealing.sealed_size(size)
    return chunks, digest, size


def seal_segment(
    chunks: list[bytes], fingerprint: str, digest: str, sealing: Sealing | None
) -> list[bytes]:
    """What is written of a segment with this (keyed) digest."""
    if sealing is None:
        return chunks
    return list(sealing.seal(_context(fingerprint, digest), chunks))


def _context(fingerprint: str, digest: str) -> bytes:
    """What a sealed segment is bound to."""
    return f"segment {VERSION} {fingerprint} {digest}".encode()


def _metadata(segment: Segment) -> dict[str, str]:
    return {
        "format": _FORMAT,
        "version": VERSION,
        "start": str(segment.start),
        "end": str(segment.end),
        "tokens_hash": segment.tokens_hash,
        "layout": segment.layout,
    }


def _digest(chunks: list[bytes]) -> str:
    hasher = xxhash.xxh3_128()
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.hexdigest()


def read_segment(path: Path, size: int, digest: str, sealing: Sealing | None = None) -> Segment:
    """Read and verify one file of `size` bytes with this xxh3_128 `digest`.

    Raises SegmentUnreadable for whatever is wrong with the content, NewerFormat for a
    whole one of a newer version, OSError if the disk fails. No header is believed:
    nothing larger than the file is ever allocated.
    """
    try:
        with open_file(path) as file:
            have = file.seek(0, 2)
            if have != size:
                raise SegmentUnreadable(f"{have} bytes, the manifest says {size}")
            file.seek(0)
            if sealing is None:
                return _read(file, size, path, lambda found: found == digest)
            opened = SealedReader(sealing, _context(path.parent.parent.name, digest), file, size)
            return _read(
                opened, opened.size, path, lambda found: sealing.content_name(found) == digest
            )
    except (NotAFile, BrokenSeal) as error:
        raise SegmentUnreadable(str(error)) from error


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def _read(file: _Readable, size: int, path: Path, is_right: Callable[[str], bool]) -> Segment:
    hasher = xxhash.xxh3_128()
    header, length = _read_header(file, size, hasher)
    order = _check_tensors(header, size - length)
    found: dict[str, bytes] = {}
    for begin, end, name in order:
        found[name] = file.read(end - begin)
        hasher.update(found[name])
    if not is_right(hasher.hexdigest()):
        raise SegmentUnreadable("the checksum does not match")
    return _build(header, found, path)


def _read_header(file: _Readable, size: int, hasher: xxhash.xxh3_128) -> tuple[dict[str, Any], int]:
    """The header, and the bytes that it takes with its length."""
    prefix = file.read(_LENGTH.size)
    if len(prefix) < _LENGTH.size:
        raise SegmentUnreadable("too short for a header")
    (length,) = _LENGTH.unpack(prefix)
    if length > min(_MAX_HEADER, size - _LENGTH.size):
        raise SegmentUnreadable(f"a header of {length} bytes in a file of {size}")
    raw = file.read(length)
    hasher.update(prefix)
    hasher.update(raw)
    try:
        header = json.loads(raw, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise SegmentUnreadable(f"the header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise SegmentUnreadable("the header is no JSON object")
    return header, _LENGTH.size + length


def _check_tensors(header: dict[str, Any], size: int) -> list[tuple[int, int, str]]:
    """(begin, end, name) of each tensor in file order; they cover `size` bytes exactly."""
    order = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = _offsets(name, entry)
        if _tensor_bytes(entry.get("dtype"), entry.get("shape")) != end - begin:
            raise SegmentUnreadable(f"tensor {name!r}: dtype and shape do not fit its bytes")
        order.append((begin, end, name))
    order.sort()
    position = 0
    for begin, end, name in order:
        if begin != position:
            raise SegmentUnreadable(f"tensor {name!r} begins at {begin}, not at {position}")
        position = end
    if position != size:
        raise SegmentUnreadable(f"tensors cover {position} of {size} bytes")
    return order


def _offsets(name: str, entry: Any) -> tuple[int, int]:
    offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(offsets, list) or [type(item) for item in offsets] != [int, int]:
        raise SegmentUnreadable(f"tensor {name!r} has no offsets")
    begin, end = offsets
    if not 0 <= begin <= end:
        raise SegmentUnreadable(f"tensor {name!r} spans [{begin}, {end})")
    return begin, end


def _tensor_bytes(dtype: Any, shape: Any) -> int | None:
    """Bytes of a tensor, or None if dtype or shape is not one."""
    item = _ITEM_BYTES.get(dtype) if isinstance(dtype, str) else None
    if item is None or not isinstance(shape, list) or len(shape) > _MAX_DIMS:
        return None
    if not all(type(dim) is int and 0 <= dim < 1 << 48 for dim in shape):
        return None
    return item * prod(shape)


def _build(header: dict[str, Any], found: dict[str, bytes], path: Path) -> Segment:
    meta = header.get("__metadata__")
    if not isinstance(meta, dict) or meta.get("format") != _FORMAT:
        raise SegmentUnreadable("not a segment of kvactors")
    version = str(meta.get("version"))
    if re.fullmatch("[1-9][0-9]{0,8}", version) and int(version) > int(VERSION):
        raise NewerFormat(path, version, VERSION)
    if version != VERSION:
        raise SegmentUnreadable(f"version {version!r}, this program reads {VERSION}")
    try:
        start, end = int(meta["start"]), int(meta["end"])
        tokens_hash, layout = str(meta["tokens_hash"]), str(meta["layout"])
    except (KeyError, ValueError, TypeError) as error:
        raise SegmentUnreadable(f"metadata: {error!r}") from error
    tensors = tuple(
        (name, str(entry["dtype"]), tuple(entry["shape"]), found[name])
        for name, entry in header.items()
        if name != "__metadata__"
    )
    return Segment(start, end, tokens_hash, layout, tensors)
