"""Segments: KV of a token range as one immutable safetensors file (tensor_file.py).

Metadata (all strings): `format` "kvactors-segment", `version` "1", `start`, `end`,
`tokens_hash`, `layout`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from kvactors.persistence.errors import NewerFormat, SegmentUnreadable, TensorFileUnreadable
from kvactors.persistence.reading import NotAFile, open_file
from kvactors.persistence.tensor_file import RawTensor, encode_tensors, read_tensors

__all__ = ["RawTensor", "Segment", "decode_segment", "encode_segment", "read_segment"]

VERSION = "1"
_FORMAT = "kvactors-segment"


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


def encode_segment(segment: Segment) -> tuple[list[bytes], str, int]:
    """The file of a segment: its chunks (tensors uncopied), xxh3_128 digest and size in bytes.

    Raises SegmentUnreadable if the tensors contradict themselves, before any write.
    """
    try:
        chunks = encode_tensors(segment.tensors, _metadata(segment))
    except TensorFileUnreadable as error:
        raise SegmentUnreadable(str(error)) from error
    hasher = xxhash.xxh3_128()
    for chunk in chunks:
        hasher.update(chunk)
    return chunks, hasher.hexdigest(), sum(map(len, chunks))


def _metadata(segment: Segment) -> dict[str, str]:
    return {
        "format": _FORMAT,
        "version": VERSION,
        "start": str(segment.start),
        "end": str(segment.end),
        "tokens_hash": segment.tokens_hash,
        "layout": segment.layout,
    }


def read_segment(path: Path, size: int, digest: str) -> Segment:
    """Read and verify one file of `size` bytes with this xxh3_128 `digest`.

    Raises SegmentUnreadable for whatever is wrong with the content, NewerFormat for a
    whole one of a newer version, OSError if the disk fails.
    """
    with _open(path) as file:
        have = file.seek(0, 2)
        if have != size:
            raise SegmentUnreadable(f"{have} bytes, the manifest says {size}")
        file.seek(0)
        return decode_segment(file, size, digest, path)


def decode_segment(file: BinaryIO, size: int, digest: str, path: Path) -> Segment:
    """`read_segment` of an open file that has `size` bytes left; `path` is for messages."""
    hasher = xxhash.xxh3_128()
    try:
        metadata, tensors = read_tensors(file, size, hasher.update)
    except TensorFileUnreadable as error:
        raise SegmentUnreadable(str(error)) from error
    if hasher.hexdigest() != digest:
        raise SegmentUnreadable("the checksum does not match")
    return _build(metadata, tensors, path)


def _open(path: Path) -> BinaryIO:
    try:
        return open_file(path)
    except NotAFile as error:
        raise SegmentUnreadable(str(error)) from error


def _build(meta: dict[str, Any], tensors: tuple[RawTensor, ...], path: Path) -> Segment:
    if meta.get("format") != _FORMAT:
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
    return Segment(start, end, tokens_hash, layout, tensors)
