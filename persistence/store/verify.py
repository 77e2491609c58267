"""Checks every frame, manifest and segment of a store, and changes nothing.

Persistence thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kvactors.persistence.errors import LedgerUnreadable, NewerFormat, SegmentUnreadable
from kvactors.persistence.files.encryption import Sealing
from kvactors.persistence.files.naming import MANIFEST_NAME, encode_agent_id
from kvactors.persistence.files.reading import NotAFile, read_file
from kvactors.persistence.files.segment import read_segment
from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.kv.folders import KvFolders
from kvactors.persistence.kv.manifest import Manifest, read_manifest
from kvactors.persistence.ledger.folder import Ledgers
from kvactors.persistence.ledger.frames import Mark, scan
from kvactors.persistence.ledger.records import decode_records

__all__ = ["Problem", "verify_agent"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that cannot be used."""

    agent_id: str
    """Whose; the name of the agent's directory where the id cannot be read."""
    path: Path
    reason: str


def verify_agent(ledgers: Ledgers, kv: KvFolders, encoded: str) -> Iterator[Problem]:
    """What is wrong with the files that `ledgers` and `kv` have of the agent whose directory is
    named `encoded`.

    A torn last frame is none: it is what a crash leaves, and nobody was promised it.
    """
    agent_id = ledgers.owner(encoded) or encoded
    marks = []
    for key in kv.keys_of(encoded):
        path = kv.folder(key) / MANIFEST_NAME
        try:
            manifest = _manifest(path, key, kv.sealing)
        except (SegmentUnreadable, NewerFormat, OSError) as error:
            yield Problem(agent_id, path, str(error))
            continue
        if manifest is not None:
            marks.append(Mark(manifest.ledger_bytes, manifest.ledger_checksum, str(path)))
            yield from _segments(agent_id, kv.folder(key), manifest, kv.sealing)
    yield from _ledger(agent_id, ledgers.path(encoded), marks, ledgers.sealing)


def _manifest(path: Path, key: Key, sealing: Sealing | None) -> Manifest | None:
    found = read_manifest(path, sealing)
    if found is not None and (encode_agent_id(found.agent_id), found.fingerprint) != key:
        raise SegmentUnreadable(f"it belongs to {found.agent_id!r}")
    return found


def _segments(
    agent_id: str, folder: Path, manifest: Manifest, sealing: Sealing | None
) -> Iterator[Problem]:
    for entry in manifest.segments:
        path = folder / entry.file
        try:
            segment = read_segment(path, entry.size, entry.digest, sealing)
        except (SegmentUnreadable, NewerFormat, OSError) as error:
            yield Problem(agent_id, path, str(error))
            continue
        if (segment.start, segment.end) != (entry.start, entry.end):
            yield Problem(agent_id, path, f"it holds tokens [{segment.start}, {segment.end})")


def _ledger(
    agent_id: str, path: Path, marks: list[Mark], sealing: Sealing | None
) -> Iterator[Problem]:
    try:
        if path.parent.is_symlink():
            yield Problem(agent_id, path, "its folder is a symbolic link")
        found = scan(read_file(path), path, marks, sealing)
        if encode_agent_id(found.agent_id) != path.parent.name:
            yield Problem(agent_id, path, f"it belongs to {found.agent_id!r}")
        decode_records(found, path, sealing)
    except FileNotFoundError:
        if any(mark.length for mark in marks):
            yield Problem(agent_id, path, "it is missing, and a manifest saw it")
    except LedgerUnreadable as error:
        yield Problem(agent_id, path, error.reason)
    except (NewerFormat, NotAFile, OSError) as error:
        yield Problem(agent_id, path, str(error))
