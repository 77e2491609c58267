"""`archive`: one file with all that a store has of an agent, to move it to another machine.
Persistence thread only.

A zip file, stored without compression, of the store's own formats:

    archive.json                                  {"format": "kvactors-archive", "version": 1}
    ledger.log                                    frame 0 and one frame of all records
    kv/<fingerprint>/manifest.msgpack             which segments, their checksums
    kv/<fingerprint>/seg-<start>-<end>-<hash>.safetensors

Every member has a checksum of its own format and the zip's CRC. Members are never unpacked
to the disk, so their names are no paths; any other name is refused. Segments are read once, each
checked as it is, and stored where nothing names them before all of them are there.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from kvactors.core.cache.segment import Segment
from kvactors.persistence.errors import (
    AgentNotStored,
    ImportRejected,
    LedgerUnreadable,
    NewerFormat,
    SegmentUnreadable,
)
from kvactors.persistence.files.atomic import Buffer, new_file
from kvactors.persistence.files.naming import (
    LEDGER_NAME,
    MANIFEST_NAME,
    check_fingerprint,
    segment_name,
)
from kvactors.persistence.files.segment import decode_segment, encode_segment
from kvactors.persistence.kv.manifest import Entry, Manifest, decode_manifest, encode_manifest
from kvactors.persistence.ledger.frames import (
    Mark,
    encode_header,
    encode_records,
    payload_checksum,
    scan,
)
from kvactors.persistence.ledger.records import decode_records
from kvactors.persistence.store.store import Store

__all__ = ["OnStep", "export_archive", "import_archive", "is_archive"]

OnStep = Callable[[int, int], None]
"""Progress: steps done, and all steps."""

VERSION = 1
_ABOUT = "archive.json"
_FORMAT = "kvactors-archive"
_MAGIC = b"PK\x03\x04"
# What zipfile raises; UnicodeDecodeError for the name of a member.
_BAD_ZIP = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    RuntimeError,
    UnicodeDecodeError,
)
# Everything but KV is read whole; a ledger of a year of talk has some 100 MB.
_MAX_PLAIN = 1 << 30


def is_archive(path: Path) -> bool:
    """Whether a file begins like a zip file. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def export_archive(
    store: Store, agent_id: str, path: Path, on_step: OnStep = lambda _done, _all: None
) -> None:
    """Write all that `store` has of `agent_id` to `path`, one fingerprint's KV in memory at a time,
    with a call of `on_step` for each step.

    Raises AgentNotStored, ExportRejected if the file is there, LedgerUnreadable, OSError.
    """
    records = store.read_ledger(agent_id)
    if records is None:
        raise AgentNotStored(agent_id, "to export")
    fingerprints = store.fingerprints(agent_id)
    frame = encode_records(records, 1, agent_id, None)
    ledger = encode_header(agent_id, None) + frame
    with new_file(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        _put(archive, _ABOUT, json.dumps({"format": _FORMAT, "version": VERSION}).encode())
        _put(archive, LEDGER_NAME, ledger)
        for place, fingerprint in enumerate(fingerprints, start=1):
            segments = store.read_kv(agent_id, fingerprint, used=False)
            entries = [_put_segment(archive, fingerprint, segment) for segment in segments]
            checksum = payload_checksum(frame)
            manifest = Manifest(agent_id, fingerprint, len(ledger), checksum, tuple(entries))
            _put(archive, f"kv/{fingerprint}/{MANIFEST_NAME}", encode_manifest(manifest))
            on_step(place, len(fingerprints))


def _put_segment(archive: zipfile.ZipFile, fingerprint: str, segment: Segment) -> Entry:
    chunks, digest, size = encode_segment(segment)
    name = segment_name(segment.start, segment.end, digest)
    _put(archive, f"kv/{fingerprint}/{name}", *chunks)
    return Entry(segment.start, segment.end, name, size, digest, segment.tokens_hash)


def _put(archive: zipfile.ZipFile, name: str, *chunks: Buffer) -> None:
    # The fixed date of ZipInfo makes the same agent the same file.
    with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as member:
        for chunk in chunks:
            member.write(chunk)


def import_archive(
    store: Store,
    path: Path,
    agent_id: str,
    on_step: OnStep = lambda _done, _all: None,
    check: Callable[[Sequence[dict[str, Any]]], object] = lambda _records: None,
) -> None:
    """Add the agent of the archive at `path` to `store` as `agent_id`, which must be free, whole or
    not at all; with one segment in memory at a time, and a call of `on_step` for each. `check`
    raises LedgerUnreadable or NewerFormat for records that cannot be used.

    Raises AgentExists, ImportRejected, StorageError, OSError.
    """
    with _Reader.open(path) as reader:
        try:
            check(reader.records)
        except NewerFormat as error:
            newer = f"a newer kvactors wrote it, in version {error.version}: upgrade this one"
            raise ImportRejected(LEDGER_NAME, newer) from error
        except LedgerUnreadable as error:
            raise ImportRejected(LEDGER_NAME, error.reason) from error
        steps = sum(len(manifest.segments) for manifest in reader.manifests)
        with store.arrivals.of(agent_id) as arrival:
            for done, (fingerprint, segment) in enumerate(reader.segments(), 1):
                arrival.add(fingerprint, segment)
                on_step(done, steps)
            arrival.finish(reader.records)
        if not steps:
            on_step(1, 1)


@contextmanager
def _reading() -> Iterator[None]:
    """Within it every way in which a zip file can be bad is an ImportRejected."""
    try:
        yield
    except _BAD_ZIP as error:
        raise ImportRejected("file", f"no archive that can be read: {error}") from error
    except SegmentUnreadable as error:
        raise ImportRejected("kv", str(error)) from error


class _Reader:
    """An open archive whose names, ledger and manifests are checked."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        if _ABOUT not in archive.namelist():
            raise ImportRejected(
                "file", f"a zip file, and no archive of kvactors: no {_ABOUT} in it"
            )
        self._archive = archive
        self._members = _members(archive, size)
        self._check_version()
        self.manifests = [
            self._manifest(name) for name in sorted(self._members) if name.endswith(MANIFEST_NAME)
        ]
        self._check_names()
        self.records = self._records()

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[_Reader]:
        """A reader."""
        with open(path, "rb") as file:
            with _reading():
                archive = zipfile.ZipFile(file)
                reader = cls(archive, file.seek(0, 2))
            with archive:
                yield reader

    def segments(self) -> Iterator[tuple[str, Segment]]:
        """All KV, each segment with its fingerprint, read and checked as it goes."""
        for manifest in self.manifests:
            for entry in manifest.segments:
                yield manifest.fingerprint, self._segment(manifest, entry)

    def _check_version(self) -> None:
        try:
            about = json.loads(self._read(_ABOUT))
            found = (about["format"], about["version"])
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise ImportRejected(_ABOUT, f"it does not name the format: {error!r}") from error
        if found != (_FORMAT, VERSION):
            raise ImportRejected(_ABOUT, f"{found!r}, this program reads {(_FORMAT, VERSION)!r}")

    def _manifest(self, name: str) -> Manifest:
        try:
            manifest = decode_manifest(self._read(name), Path(name))
        except (NewerFormat, SegmentUnreadable) as error:
            raise ImportRejected(name, str(error)) from error
        if PurePosixPath(name) != PurePosixPath("kv", manifest.fingerprint, MANIFEST_NAME):
            raise ImportRejected(name, f"it is of fingerprint {manifest.fingerprint!r:.80}")
        check_fingerprint(manifest.fingerprint)
        return manifest

    def _check_names(self) -> None:
        expected = {_ABOUT, LEDGER_NAME}
        for manifest in self.manifests:
            folder = f"kv/{manifest.fingerprint}"
            expected |= {f"{folder}/{entry.file}" for entry in manifest.segments}
            expected.add(f"{folder}/{MANIFEST_NAME}")
        for name in sorted(expected ^ set(self._members)):
            raise ImportRejected(name, "missing, or no member that an archive has")

    def _records(self) -> tuple[dict[str, Any], ...]:
        path = Path(LEDGER_NAME)
        marks = [
            Mark(found.ledger_bytes, found.ledger_checksum, found.fingerprint)
            for found in self.manifests
        ]
        try:
            found = scan(self._read(LEDGER_NAME), path, marks)
            if found.torn is not None:
                raise ImportRejected(LEDGER_NAME, found.torn)
            return decode_records(found, path)
        except LedgerUnreadable as error:
            raise ImportRejected(LEDGER_NAME, error.reason) from error

    @_reading()
    def _segment(self, manifest: Manifest, entry: Entry) -> Segment:
        name = f"kv/{manifest.fingerprint}/{entry.file}"
        if self._members[name].file_size != entry.size:
            raise ImportRejected(name, f"not the {entry.size} bytes that its manifest says")
        with self._archive.open(self._members[name]) as file:
            segment = decode_segment(file, entry.size, entry.digest, Path(name))
        if (segment.start, segment.end) != (entry.start, entry.end):
            raise ImportRejected(name, f"it holds tokens [{segment.start}, {segment.end})")
        return segment

    def _read(self, name: str) -> bytes:
        if name not in self._members:
            raise ImportRejected(name, "this member is missing")
        if self._members[name].file_size > _MAX_PLAIN:
            raise ImportRejected(name, f"larger than {_MAX_PLAIN} bytes")
        return self._archive.read(self._members[name])


def _members(archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
    """Members by name: stored, unencrypted, unique, and together no larger than the file."""
    found: dict[str, zipfile.ZipInfo] = {}
    total = 0
    for member in archive.infolist():
        total += member.file_size
        plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
        if not plain or member.file_size != member.compress_size or total > size:
            raise ImportRejected(member.filename, "archives are stored as they are, unpacked")
        if not 0 <= member.header_offset < size:
            raise ImportRejected(member.filename, f"it begins at byte {member.header_offset}")
        if member.filename in found:
            raise ImportRejected(member.filename, "it is there twice")
        found[member.filename] = member
    return found
