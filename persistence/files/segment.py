"""Segments: KV of a token range as one immutable safetensors file (tensor_file.py).
Pure: any thread.

In an encrypted store the whole file is sealed (encryption.py), for its fingerprint and content,
so that agents can share it, and its digest is a keyed one.

Metadata (all strings): `format` "kvactors-segment", `version` "1", `start`, `end`,
`tokens_hash`, `layout`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import xxhash

from kvactors.core.cache.segment import RawTensor, Segment
from kvactors.persistence.errors import NewerFormat, SegmentUnreadable, TensorFileUnreadable
from kvactors.persistence.files.atomic import Buffer
from kvactors.persistence.files.encryption import BrokenSeal, SealedReader, Sealing
from kvactors.persistence.files.reading import NotAFile, open_file
from kvactors.persistence.files.tensor_file import Readable, encode_tensors, read_tensors

__all__ = [
    "decode_segment",
    "encode_segment",
    "open_segment",
    "read_segment",
    "seal_segment",
]

VERSION = "1"
_FORMAT = "kvactors-segment"


def encode_segment(
    segment: Segment, sealing: Sealing | None = None
) -> tuple[list[Buffer], str, int]:
    """The file of a segment: its chunks (tensors uncopied), xxh3_128 digest and size in bytes.

    With `sealing` the chunks are still plain (`seal_segment` seals them); the digest is the
    keyed one, the size that of the sealed file.

    Raises SegmentUnreadable if the tensors contradict themselves, before any write.
    """
    try:
        chunks = encode_tensors(segment.tensors, _metadata(segment))
    except TensorFileUnreadable as error:
        raise SegmentUnreadable(str(error)) from error
    hasher = xxhash.xxh3_128()
    for chunk in chunks:
        hasher.update(chunk)
    digest, size = hasher.hexdigest(), sum(map(len, chunks))
    if sealing is not None:
        return chunks, sealing.content_name(digest), sealing.sealed_size(size)
    return chunks, digest, size


def seal_segment(
    chunks: list[Buffer], fingerprint: str, digest: str, sealing: Sealing | None
) -> list[Buffer]:
    """What is written of a segment's `chunks` with this (keyed) `digest` under a `fingerprint`,
    sealed if there is a `sealing`."""
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


def read_segment(path: Path, size: int, digest: str, sealing: Sealing | None = None) -> Segment:
    """Read and verify the file at `path`, of `size` bytes with this xxh3_128 `digest`, opened by
    `sealing`.

    Raises SegmentUnreadable for whatever is wrong with the content, NewerFormat for a
    whole one of a newer version, OSError if the disk fails. One that a newer version sealed has a
    manifest that it sealed, too.
    """
    try:
        with open_file(path) as file:
            have = file.seek(0, 2)
            if have != size:
                raise SegmentUnreadable(f"{have} bytes, the manifest says {size}")
            file.seek(0)
            return _decode_opened(file, size, digest, path, sealing)
    except NotAFile as error:
        raise SegmentUnreadable(str(error)) from error


def open_segment(data: bytes, digest: str, path: Path, sealing: Sealing | None = None) -> Segment:
    """`read_segment` of `data`, all bytes of a file that had this `digest` and a `path` with the
    same last three names, opened by `sealing`."""
    return _decode_opened(BytesIO(data), len(data), digest, path, sealing)


def _decode_opened(
    file: BinaryIO, size: int, digest: str, path: Path, sealing: Sealing | None
) -> Segment:
    if sealing is None:
        return decode_segment(file, size, digest, path)
    try:
        context = _context(path.parent.parent.name, digest)
        opened = SealedReader(sealing, context, file, size)
        return decode_segment(opened, opened.size, digest, path, sealing.content_name)
    except BrokenSeal as error:
        raise SegmentUnreadable(str(error)) from error


def decode_segment(
    file: Readable, size: int, digest: str, path: Path, name: Callable[[str], str] = str
) -> Segment:
    """`read_segment` of an open file that has `size` bytes left; `path` is for messages.

    `name` makes the `digest` due of the content's own.
    """
    hasher = xxhash.xxh3_128()
    try:
        metadata, tensors = read_tensors(file, size, hasher.update)
    except TensorFileUnreadable as error:
        raise SegmentUnreadable(str(error)) from error
    if name(hasher.hexdigest()) != digest:
        raise SegmentUnreadable("the checksum does not match")
    return _build(metadata, tensors, path)


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
