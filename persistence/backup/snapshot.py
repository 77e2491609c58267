"""What one backup found: names of objects by their content. Pure: any thread.

    blobs/<xxh3_128>            a piece of a ledger, a manifest, a segment
    snapshots/<moment>.msgpack  {"version": 1, "agents": [[folder, ledger pieces, KV], ...],
                                 "notes": of whoever made it, kept with the restored store,
                                 "databases": [[file, pieces], ...] beside the agents}

A ledger only grows, so a backup adds what is new of it as one more piece. KV is a list of
[fingerprint, manifest, [[file, digest], ...]]. What agents share is one object. Pieces of a
database are pages that stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]
import xxhash

from kvactors.persistence.errors import BackupFailed
from kvactors.persistence.files.naming import DATABASE_NAME, SEGMENT_NAME, check_fingerprint

__all__ = [
    "BLOBS",
    "SNAPSHOTS",
    "AgentEntry",
    "KVEntry",
    "Pieces",
    "Snapshot",
    "blob_name",
    "digest_of",
]

VERSION = 1
BLOBS, SNAPSHOTS = "blobs", "snapshots"

Pieces = tuple[tuple[str, int], ...]
"""Digests of the pieces of a file, with their lengths in bytes."""


@dataclass(frozen=True, slots=True)
class KVEntry:
    """KV under one fingerprint: the digest of its manifest; names and digests of its files."""

    fingerprint: str
    manifest: str
    segments: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """An agent's folder, the pieces of its ledger, and its KV."""

    encoded: str
    ledger: Pieces
    kv: tuple[KVEntry, ...]

    def plain(self) -> list[Any]:
        """Of what msgpack packs."""
        kv = [[one.fingerprint, one.manifest, one.segments] for one in self.kv]
        return [self.encoded, self.ledger, kv]

    @classmethod
    def from_plain(cls, plain: Sequence[Any]) -> AgentEntry:
        """The same again. Raises ValueError, TypeError and the like for what is none, and where a
        name is a path."""
        return _agent(*plain)

    def objects(self) -> Iterator[str]:
        """Digests of all that it names."""
        yield from (digest for digest, _ in self.ledger)
        for one in self.kv:
            yield one.manifest
            yield from (digest for _, digest in one.segments)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All agents of a store, of one moment each, and databases beside them: names and pieces."""

    agents: tuple[AgentEntry, ...]
    notes: bytes = b""
    databases: tuple[tuple[str, Pieces], ...] = ()

    def pack(self) -> bytes:
        """The object's bytes."""
        made: dict[str, Any] = {"version": VERSION}
        made["agents"] = [agent.plain() for agent in self.agents]
        more = {"notes": self.notes, "databases": self.databases}
        packed: bytes = msgpack.packb(made | {key: value for key, value in more.items() if value})
        return packed

    @classmethod
    def unpack(cls, data: bytes, name: str) -> Snapshot:
        """What `pack` made; `name` is the object's. Raises BackupFailed."""
        try:
            found = msgpack.unpackb(data, use_list=False)
            version = found["version"]
            if version == VERSION:
                agents = tuple(AgentEntry.from_plain(one) for one in found["agents"])
                databases = tuple(_database(*one) for one in found.get("databases", ()))
                return cls(agents, bytes(found.get("notes", b"")), databases)
        except Exception as error:
            raise BackupFailed(f"{name} is no snapshot: {error}") from error
        raise BackupFailed(f"{name} is of version {version}, and this kvactors reads {VERSION}")


def _agent(encoded: str, ledger: Any, kv: Any) -> AgentEntry:
    if not encoded or encoded.startswith(".") or "/" in encoded or "\\" in encoded:
        raise ValueError(f"{encoded!r} is no agent's folder")
    entries = tuple(
        KVEntry(check_fingerprint(name), str(manifest), tuple((str(f), str(d)) for f, d in files))
        for name, manifest, files in kv
    )
    for file, _ in (segment for entry in entries for segment in entry.segments):
        if not SEGMENT_NAME.fullmatch(file):
            raise ValueError(f"{file!r} is no segment's name")
    return AgentEntry(encoded, _pieces(ledger), entries)


def _database(name: str, pieces: Any) -> tuple[str, Pieces]:
    if not DATABASE_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no database's name")
    return name, _pieces(pieces)


def _pieces(plain: Any) -> Pieces:
    return tuple((str(digest), int(size)) for digest, size in plain)


def digest_of(data: bytes) -> str:
    """xxh3_128, as segments' names have it."""
    return xxhash.xxh3_128_hexdigest(data)


def blob_name(digest: str) -> str:
    """The object of this content."""
    return f"{BLOBS}/{digest}"
