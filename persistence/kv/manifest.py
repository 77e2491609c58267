"""The manifest: the commit record of one agent's KV under one fingerprint. Pure: any thread.

A msgpack array [b"KVAM", version, xxh3_64 of the body, body]; the body is a msgpack
map. In an encrypted store the magic is b"KVAE" and the body is sealed (encryption.py) for its
agent and fingerprint. What a manifest does not name does not exist. It also says how long
the ledger was when it was written: a ledger that is shorter now has lost turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import xxhash

from kvactors.persistence.errors import NewerFormat, SegmentUnreadable
from kvactors.persistence.files.encryption import Sealing, refuse_newer
from kvactors.persistence.files.naming import SEGMENT_NAME, encode_agent_id
from kvactors.persistence.files.packing import pack, unpack
from kvactors.persistence.files.reading import NotAFile, read_file

__all__ = ["Entry", "Manifest", "decode_manifest", "encode_manifest", "read_manifest"]

VERSION = 1
_MAGIC, _SEALED_MAGIC = b"KVAM", b"KVAE"
# Some 40,000 segments, 10 million tokens.
_MAX_BYTES = 4 << 20
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Entry:
    """One segment file that holds the KV of tokens [start, end)."""

    start: int
    end: int
    file: str
    size: int  # bytes
    digest: str  # xxh3_128 of the file, hex
    tokens_hash: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """Segments in order, contiguous from token 0, and the ledger they belong to."""

    agent_id: str
    fingerprint: str
    ledger_bytes: int
    ledger_checksum: int
    segments: tuple[Entry, ...]

    @property
    def tokens(self) -> int:
        """Tokens whose KV is stored: the segments cover [0, tokens)."""
        return self.segments[-1].end if self.segments else 0


def encode_manifest(manifest: Manifest, sealing: Sealing | None = None) -> bytes:
    """The file's bytes."""
    body = pack(
        {
            "agent_id": manifest.agent_id,
            "fingerprint": manifest.fingerprint,
            "ledger_bytes": manifest.ledger_bytes,
            "ledger_checksum": manifest.ledger_checksum,
            "segments": [
                [entry.start, entry.end, entry.file, entry.size, entry.digest, entry.tokens_hash]
                for entry in manifest.segments
            ],
        }
    )
    if sealing is not None:
        context = _context(encode_agent_id(manifest.agent_id), manifest.fingerprint)
        body = sealing.seal_bytes(context, body)
    magic = _MAGIC if sealing is None else _SEALED_MAGIC
    return pack([magic, VERSION, xxhash.xxh3_64_intdigest(body), body])


def _context(encoded: str, fingerprint: str) -> bytes:
    """What a sealed manifest is bound to."""
    return f"manifest {VERSION} {encoded} {fingerprint}".encode()


def read_manifest(path: Path, sealing: Sealing | None = None) -> Manifest | None:
    """The manifest at `path`, None if there is none.

    Raises SegmentUnreadable, NewerFormat, OSError.
    """
    try:
        data = read_file(path, _MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except NotAFile as error:
        raise SegmentUnreadable(f"manifest: {error}") from error
    return decode_manifest(data, path, sealing)


def decode_manifest(data: bytes, path: Path, sealing: Sealing | None = None) -> Manifest:
    """Checked manifest from `data`, opened by `sealing`; raises SegmentUnreadable for anything that
    is not one.

    Raises NewerFormat, naming `path`, for one that a newer version wrote.
    """
    try:
        return _decode(data, path, sealing)
    except (ValueError, TypeError, KeyError) as error:
        raise SegmentUnreadable(f"manifest: {error}") from error


def _decode(data: bytes, path: Path, sealing: Sealing | None) -> Manifest:
    # A later version may append fields to the outer array, but not change the first two.
    magic, version, *rest = unpack(data)
    if magic in (_MAGIC, _SEALED_MAGIC) and type(version) is int and version > VERSION:
        raise NewerFormat(path, version, VERSION)
    digest, body = rest
    if magic not in (_MAGIC, _SEALED_MAGIC) or version != VERSION:
        raise ValueError(f"version {version!r}, this program reads {VERSION}")
    if not isinstance(body, bytes) or xxhash.xxh3_64_intdigest(body) != digest:
        raise ValueError("the checksum does not match")
    if (magic == _SEALED_MAGIC) != (sealing is not None):
        raise ValueError("it is encrypted and the store is not, or the other way round")
    if sealing is not None:
        refuse_newer(body, path)
        body = sealing.open_bytes(_context(path.parent.name, path.parent.parent.name), body)
    fields = unpack(body)
    manifest = Manifest(
        agent_id=_typed(fields["agent_id"], str),
        fingerprint=_typed(fields["fingerprint"], str),
        ledger_bytes=_typed(fields["ledger_bytes"], int),
        ledger_checksum=_typed(fields["ledger_checksum"], int),
        segments=tuple(_entry(item) for item in fields["segments"]),
    )
    _check_cover(manifest.segments)
    return manifest


def _typed(value: Any, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise ValueError(f"{value!r:.80} is no {kind.__name__}")
    return value


def _entry(item: Any) -> Entry:
    start, end, file, size, digest, tokens_hash = item
    if not SEGMENT_NAME.fullmatch(_typed(file, str)):
        raise ValueError(f"{file!r:.80} is no segment name")
    numbers = (_typed(start, int), _typed(end, int))
    return Entry(*numbers, file, _typed(size, int), _typed(digest, str), _typed(tokens_hash, str))


def _check_cover(segments: tuple[Entry, ...]) -> None:
    position = 0
    for entry in segments:
        if entry.start != position or entry.end <= entry.start:
            raise ValueError(f"segment [{entry.start}, {entry.end}) at token {position}")
        position = entry.end
