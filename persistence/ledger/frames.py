"""The ledger: append-only, checksummed frames. An agent's truth. Pure: any thread.

A file is frame 0 (kind HEADER: the agent's id) and then one frame for each save
(kind RECORDS: a msgpack list of the save's records, so that a save is there whole or
not at all). A frame is 40 little-endian bytes and its payload:

    magic "KVAL" | version u8 | kind u8 | flags u16 | records u32 | payload bytes u32
    | sequence u64 | xxh3_64 of the payload u64 | xxh3_64 of the 32 bytes before u64

Flag 1: the payload is sealed (encryption.py), for this agent and this place in its ledger;
checksums are of the sealed bytes. All frames of a ledger are sealed, or none is.

**Torn or damaged?** Only the last append can be torn: each is synced before the next
one starts, and a new ledger gets its name only when its first frames are synced. So a
bad frame is *torn*, and cut, if all of this holds; else it is *damage*, an error:

- it is not frame 0;
- no frame follows it: its (checksummed) length reaches to or past the end of the file,
  or, where its own header is bad, no valid later header is found behind it;
- no manifest of the agent refers to a byte of it: what a manifest names was synced.

What this gives up: a byte that rots in the last frame before any KV of that turn was
saved is taken for a write whose pages reached the disk out of order, and is cut with a
warning. Those two cannot be told apart; refusing the agent after each power loss would
be the worse error.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from kvactors.persistence.errors import LedgerUnreadable, NewerFormat
from kvactors.persistence.files.encryption import BrokenSeal, Sealing, key_id_of, refuse_newer
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.files.packing import pack, unpack

__all__ = [
    "Frame",
    "Mark",
    "Scan",
    "encode_copy",
    "encode_header",
    "encode_records",
    "payload_checksum",
    "payload_of",
    "read_agent_id",
    "read_frame",
    "read_key_id",
    "scan",
]

VERSION = 1
HEADER, RECORDS = 0, 1
_SEALED = 1
_MAGIC = b"KVAL"
_FIELDS = struct.Struct("<4sBBHIIQQ")
_CHECK = struct.Struct("<Q")
_SIZE = _FIELDS.size + _CHECK.size


class Mark(NamedTuple):
    """A point of a ledger that a manifest saw synced."""

    length: int  # bytes of the ledger at that time; 0: there was none
    checksum: int  # of its last frame's payload
    manifest: str  # who says so, for messages


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame whose checksums hold. `end` is the file offset behind it."""

    kind: int
    records: int
    payload: bytes
    end: int
    checksum: int
    sealed: bool


@dataclass(frozen=True, slots=True)
class Scan:
    """What a ledger file holds: the frames that count, and how it ends."""

    agent_id: str
    frames: tuple[Frame, ...]
    torn: str | None  # why the bytes behind the last frame are cut; None: there are none

    @property
    def length(self) -> int:
        """Bytes of the frames that count."""
        return self.frames[-1].end

    @property
    def records(self) -> int:
        """Records in all frames."""
        return sum(frame.records for frame in self.frames)


def encode_header(agent_id: str, sealing: Sealing | None) -> bytes:
    """Frame 0 of an agent's ledger."""
    return _encode(HEADER, 0, 0, pack({"agent_id": agent_id}), agent_id, sealing)


def encode_records(
    records: Sequence[dict[str, Any]], sequence: int, agent_id: str, sealing: Sealing | None
) -> bytes:
    """Frame number `sequence` of the ledger of `agent_id` with a save's records, sealed if there is
    a `sealing`; TypeError if one is no msgpack map."""
    if not all(isinstance(record, dict) for record in records):
        raise TypeError("a ledger record must be a dict that msgpack can pack")
    return _encode(RECORDS, len(records), sequence, pack(list(records)), agent_id, sealing)


def _encode(
    kind: int, records: int, sequence: int, payload: bytes, agent_id: str, sealing: Sealing | None
) -> bytes:
    if sealing is not None:
        context = _context(encode_agent_id(agent_id), kind, records, sequence)
        payload = sealing.seal_bytes(context, payload)
    flags = _SEALED if sealing is not None else 0
    digest = xxhash.xxh3_64_intdigest(payload)
    fields = _FIELDS.pack(_MAGIC, VERSION, kind, flags, records, len(payload), sequence, digest)
    return fields + _CHECK.pack(xxhash.xxh3_64_intdigest(fields)) + payload


def _context(encoded: str, kind: int, records: int, sequence: int) -> bytes:
    """What a sealed frame is bound to."""
    return f"ledger {VERSION} {encoded} {kind} {records} {sequence}".encode()


def encode_copy(
    agent_id: str, frames: Sequence[Frame], path: Path, sealing: Sealing | None
) -> tuple[bytes, list[int]]:
    """A ledger of `agent_id` with the same records, and the offset behind each frame.

    `frames` are those of another agent's ledger at `path`, its header first; both
    are sealed by `sealing` if there is one. Raises LedgerUnreadable.
    """
    copies = [encode_header(agent_id, sealing)]
    for number, frame in enumerate(frames[1:], start=1):
        payload = payload_of(frame, number, path, sealing)
        copies.append(_encode(RECORDS, frame.records, number, payload, agent_id, sealing))
    return b"".join(copies), list(accumulate(map(len, copies)))


def payload_of(frame: Frame, number: int, path: Path, sealing: Sealing | None) -> bytes:
    """The plain payload of a `frame` with this `number` of the ledger at `path`, opened by
    `sealing`. Raises LedgerUnreadable, NewerFormat."""
    if frame.sealed != (sealing is not None):
        what = "sealed, and there is no key" if frame.sealed else "not sealed, as all others are"
        raise LedgerUnreadable(path, f"frame {number} is {what}")
    if sealing is None:
        return frame.payload
    refuse_newer(frame.payload, path)
    context = _context(path.parent.name, frame.kind, frame.records, number)
    try:
        return sealing.open_bytes(context, frame.payload)
    except BrokenSeal as error:
        raise LedgerUnreadable(path, f"frame {number}: {error}") from error


def payload_checksum(frame: bytes | memoryview) -> int:
    """The xxh3_64 of a frame's payload, as its header has it."""
    checksum: int = _FIELDS.unpack_from(frame)[7]
    return checksum


def scan(
    data: bytes, path: Path, marks: Iterable[Mark] = (), sealing: Sealing | None = None
) -> Scan:
    """Check every frame of a ledger file's `data` and every one of `marks` against it; `sealing`
    opens them.

    Raises LedgerUnreadable, naming `path`, for damage and for a ledger that is not the
    one its manifests were written for, NewerFormat for frames of a newer version. Does not
    decode the records.
    """
    marks = tuple(marks)
    frames: list[Frame] = []
    offset, torn = 0, None
    while offset < len(data) or not frames:
        frame = read_frame(data, offset, len(frames), path)
        if isinstance(frame, str):
            torn = f"frame {len(frames)} at byte {offset}: {frame}"
            _check_torn(data, offset, len(frames), torn, path, marks)
            break
        if frame.sealed:
            refuse_newer(frame.payload, path)
        frames.append(frame)
        offset = frame.end
    _check_marks(frames, path, marks)
    return Scan(read_agent_id(data, path, sealing), tuple(frames), torn)


def _header(data: bytes, offset: int) -> tuple[Any, ...] | None:
    fields = data[offset : offset + _FIELDS.size]
    check = data[offset + _FIELDS.size : offset + _SIZE]
    if len(check) < _CHECK.size or _CHECK.unpack(check)[0] != xxhash.xxh3_64_intdigest(fields):
        return None
    return _FIELDS.unpack(fields)


def read_frame(data: bytes, offset: int, sequence: int, path: Path) -> Frame | str:
    """The frame at `offset` of `data`, number `sequence` of the ledger at `path`, or why it is bad;
    raises LedgerUnreadable or NewerFormat for what a torn write cannot be."""
    header = _header(data, offset)
    if header is None:
        cut = len(data) - offset < _SIZE
        return "its header is cut off" if cut else "its header fails its checksum"
    magic, version, kind, flags, records, length, number, digest = header
    if magic == _MAGIC and version > VERSION:
        raise NewerFormat(path, version, VERSION)
    if magic != _MAGIC or version != VERSION:
        raise LedgerUnreadable(path, f"frame {sequence} has version {version}, not {VERSION}")
    if number != sequence or (kind == HEADER) != (sequence == 0):
        raise LedgerUnreadable(path, f"frame {number} stands where {sequence} is due")
    payload = data[offset + _SIZE : offset + _SIZE + length]
    if len(payload) < length:
        return f"{len(payload)} of its {length} bytes are there"
    if xxhash.xxh3_64_intdigest(payload) != digest:
        return "its payload fails its checksum"
    end = offset + _SIZE + length
    return Frame(kind, records, payload, end, digest, bool(flags & _SEALED))


def _check_torn(
    data: bytes, offset: int, sequence: int, reason: str, path: Path, marks: Sequence[Mark]
) -> None:
    if sequence == 0 or _followed(data, offset, sequence):
        raise LedgerUnreadable(path, reason)
    for mark in marks:
        if mark.length > offset:
            raise LedgerUnreadable(path, f"{reason}, and {mark.manifest} saw it whole")


def _followed(data: bytes, offset: int, sequence: int) -> bool:
    """Does a frame stand behind the bad one at `offset`?"""
    header = _header(data, offset)
    if header is not None:
        return bool(offset + _SIZE + header[5] < len(data))
    place = data.find(_MAGIC, offset + 1)
    while place >= 0:
        later = _header(data, place)
        if later is not None and later[6] > sequence:
            return True
        place = data.find(_MAGIC, place + 1)
    return False


def _check_marks(frames: Sequence[Frame], path: Path, marks: Iterable[Mark]) -> None:
    ends = {frame.end: frame.checksum for frame in frames}
    for mark in marks:
        if mark.length > frames[-1].end:
            have = f"it has {frames[-1].end} bytes of the {mark.length}"
            raise LedgerUnreadable(path, f"{have} that {mark.manifest} saw")
        if mark.length and ends.get(mark.length) != mark.checksum:
            raise LedgerUnreadable(path, f"it is not the ledger that {mark.manifest} saw")


def read_key_id(data: bytes, path: Path) -> bytes | None:
    """The id of the key that sealed frame 0, in whichever version; None: it is plain. Raises
    LedgerUnreadable."""
    first = read_frame(data, 0, 0, path)
    if isinstance(first, str):
        raise LedgerUnreadable(path, f"frame 0: {first}")
    return key_id_of(first.payload) if first.sealed else None


def read_agent_id(data: bytes, path: Path, sealing: Sealing | None) -> str:
    """The agent's id from frame 0 of `data`, whatever follows it, opened by `sealing`; raises
    LedgerUnreadable, naming `path`."""
    first = read_frame(data, 0, 0, path)
    if isinstance(first, str):
        raise LedgerUnreadable(path, f"frame 0: {first}")
    try:
        agent_id = unpack(payload_of(first, 0, path, sealing))["agent_id"]
    except (ValueError, TypeError, KeyError) as error:
        raise LedgerUnreadable(path, f"frame 0 names no agent: {error}") from error
    if not isinstance(agent_id, str):
        raise LedgerUnreadable(path, "frame 0 names no agent")
    return agent_id
