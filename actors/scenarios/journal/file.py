"""The journal of a run: a file that is only appended to, checksummed, of one version.

    b"kvactors run 1\\n", then frames:
    payload bytes u32 | xxh32 of the payload u32 | xxh32 of those 8 bytes u32 | payload

A payload is a msgpack list: the number of its kind, then the fields of its record in their order;
the header is a map. Seconds are whole microseconds. Fields at the end that are as by default are
left out.

The journal that AgentSystem keeps of behaviours cannot serve here: it has what one process's
behaviours were told, agent by agent, is begun anew with each process and replays one agent after
the other. A run outlives processes: its journal is cut where a kill tore it and goes on, and its
records stand in the order between agents.

**Torn or damaged?** What ends with the file was torn and is cut: a frame that is not all there, or
that fails its checksum and has nothing but zeros behind it. A journal whose header was torn holds
nothing, and is begun again. Everything else is damage, an error that names the byte. One thread
writes.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import MISSING, asdict, fields
from itertools import islice
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import xxhash

from kvactors.actors.scenarios.journal.records import Event, Failure, Header, Heard, Turn
from kvactors.core.errors import InvalidInput

__all__ = ["Journal", "Record", "holds_run", "read_frames"]

VERSION = 1
_MAGIC = b"kvactors run "
_FIRST = _MAGIC + b"%d\n" % VERSION
_FRAME = struct.Struct("<III")
Record = Turn | Heard | Failure | Event
_KINDS: tuple[type[Record], ...] = (Turn, Heard, Failure, Event)
_FIELDS = {kind: fields(kind) for kind in _KINDS}
_SECONDS = frozenset(["begun", "queued", "restore", "prefill", "first_token", "total", "at"])
_MILLION = 1_000_000


class Journal:
    """Appends records to a new file at `path` that begins with a `header`, or, without one, to what
    is there already. Raises OSError, InvalidInput."""

    def __init__(self, path: Path, header: Header | None = None) -> None:
        self.path = path
        self._synced = True
        if header is None:
            end = _whole(path)
            self._file = path.open("r+b", buffering=0)
            self._file.truncate(end)
            self._file.seek(end)
            return
        first = _FIRST + _frame(asdict(header))
        self._file = path.open("xb", buffering=0)
        try:
            self._write(first)
        except OSError:
            self._file.close()
            raise

    def append(self, record: Record) -> None:
        """Write a record; a kill from now on does not lose it. Raises OSError, and then nothing of
        it is there."""
        self._write(_frame(_packed(record)))

    def sync(self) -> None:
        """Let what was appended survive a power cut, too. Raises OSError."""
        if not self._synced:
            os.fsync(self._file.fileno())
            self._synced = True

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, data: bytes) -> None:
        end = self._file.tell()
        try:
            written = self._file.write(data)
            if written != len(data):
                raise OSError(f"{self.path}: the disk took {written} of {len(data)} bytes")
        except OSError:
            self._file.truncate(end)
            self._file.seek(end)
            raise
        self._synced = False


def holds_run(path: Path) -> bool:
    """Whether a journal was begun there: its header is whole. Raises InvalidInput, OSError."""
    return path.exists() and next(_frames(path.read_bytes(), path), None) is not None


def read_frames(path: Path, *, behind: int = 0) -> Iterator[Header | Record]:
    """The header and the records of a journal, in the order in which they were written,
    `behind` the first of them; a torn last one is left out. Raises InvalidInput, OSError."""
    for number, (_, payload) in islice(enumerate(_begun(path)), behind, None):
        found = msgpack.unpackb(payload, strict_map_key=False)
        yield _header(found) if number == 0 else _unpacked(found)


def _whole(path: Path) -> int:
    """The byte behind the last frame that is whole."""
    return max(end for end, _ in _begun(path))


def _begun(path: Path) -> Iterator[tuple[int, bytes]]:
    """The frames of a journal that has one at least. Raises InvalidInput, OSError."""
    if not holds_run(path):
        raise InvalidInput(f"{path} holds nothing of a run: begin it again")
    return _frames(path.read_bytes(), path)


def _frames(data: bytes, path: Path) -> Iterator[tuple[int, bytes]]:
    """The end and the payload of each frame. Raises InvalidInput."""
    written = len(data.rstrip(b"\0"))
    if _FIRST.startswith(data[:written]):
        return
    if not data.startswith(_FIRST):
        raise InvalidInput(_strange(data, path))
    offset = len(_FIRST)
    while offset < len(data):
        begin = offset + _FRAME.size
        head = data[offset:begin]
        whole = len(head) == _FRAME.size
        length, digest, check = _FRAME.unpack(head) if whole else (0, 0, 0)
        if not whole or xxhash.xxh32_intdigest(head[:8]) != check:
            what, end = "frame", begin
        else:
            payload, end = data[begin : begin + length], begin + length
            if len(payload) == length and xxhash.xxh32_intdigest(payload) == digest:
                yield end, payload
                offset = end
                continue
            what = "record"
        if written <= end:
            return
        raise InvalidInput(f"{path} is damaged at byte {offset}: a {what} fails its checksum")


def _strange(data: bytes, path: Path) -> str:
    first = data[: len(_FIRST) + 8].split(b"\n")[0]
    version = first.removeprefix(_MAGIC)
    if first.startswith(_MAGIC) and version.isdigit() and int(version) > VERSION:
        return f"{path} is of version {int(version)}, and this kvactors reads up to {VERSION}"
    return f"{path} is no journal of a run"


def _frame(value: Any) -> bytes:
    payload: bytes = msgpack.packb(value)
    head = struct.pack("<II", len(payload), xxhash.xxh32_intdigest(payload))
    return head + struct.pack("<I", xxhash.xxh32_intdigest(head)) + payload


def _packed(record: Record) -> list[Any]:
    values = []
    known = _FIELDS[type(record)]
    for field in known:
        value = getattr(record, field.name)
        values.append(round(value * _MILLION) if field.name in _SECONDS else value)
    for field in reversed(known):
        if field.default is MISSING or values[-1] != field.default:
            break
        values.pop()
    return [_KINDS.index(type(record)), *values]


def _unpacked(found: list[Any]) -> Record:
    kind = _KINDS[found[0]]
    values: dict[str, Any] = {}
    for field, value in zip(_FIELDS[kind], found[1:], strict=False):
        if field.name in _SECONDS:
            value = value / _MILLION
        values[field.name] = tuple(value) if isinstance(value, list) else value
    record: Record = kind(**values)
    return record


def _header(found: dict[str, Any]) -> Header:
    known = {field.name for field in fields(Header)}
    values = {name: value for name, value in found.items() if name in known}
    return Header(
        **{**values, "agents": tuple(values["agents"]), "phases": tuple(values["phases"])}
    )
