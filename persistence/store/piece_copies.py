"""KV piece by piece, from one store to another. Persistence thread only.

A piece is some segments of one agent under one fingerprint, one behind another, as files have them
(sealed, in an encrypted store, which binds them to fingerprint and content and not to an agent):

    {"version": 1, "fingerprint": ..., "segments": [[file name, bytes], ...]}

Each is verified by the checksum in its name before it is stored. KV is a cache of the ledger: what
does not fit is left out, and its tokens are prefilled again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvactors.core.cache.segment import Segment
from kvactors.persistence.commit.save import Save
from kvactors.persistence.errors import StorageError
from kvactors.persistence.files.naming import SEGMENT_NAME, check_fingerprint, encode_agent_id
from kvactors.persistence.files.reading import NotAFile, read_file
from kvactors.persistence.files.segment import open_segment
from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.kv.manifest import Entry
from kvactors.persistence.store.group import commit_one
from kvactors.persistence.store.parts import StoreParts

__all__ = ["PIECE_BYTES", "PieceCopies"]

PIECE_BYTES = 8 << 20
"""Of a piece, unless its first segment is larger."""
VERSION = 1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Copied:
    """A segment as it came."""

    name: str
    data: bytes


class PieceCopies:
    """The KV of `store`; `touch` sweeps an agent before its files are read."""

    def __init__(self, store: StoreParts, touch: Callable[[str], str]) -> None:
        self._store = store
        self._touch = touch

    def names(self, agent_id: str) -> list[str]:
        """Of the segments of an agent that are stored here, of all models: they name content, so
        the same segment has the same name in every store with the same key, or none."""
        return [_name(key, entry) for key, entries in self._stored(agent_id) for entry in entries]

    def read(
        self, agent_id: str, have: Collection[str], most: int = PIECE_BYTES
    ) -> dict[str, Any] | None:
        """The first piece of the KV of `agent_id` whose segments are not among those that others
        `have`, by their names; None: they have all that can be read. It has one segment at least,
        and no further ones beyond `most` bytes."""
        for key, entries in self._stored(agent_id):
            missing = [entry for entry in entries if _name(key, entry) not in have]
            segments = list(self._read(key, missing, most))
            if segments:
                return {"version": VERSION, "fingerprint": key.fingerprint, "segments": segments}
        return None

    def names_of(self, piece: Mapping[str, Any]) -> list[str]:
        """The names of a piece's segments."""
        return [f"{piece['fingerprint']}/{name}" for name, _ in piece["segments"]]

    def add(
        self,
        agent_id: str,
        piece: Mapping[str, Any],
        last: Callable[[], Iterable[str]] = tuple,
    ) -> bool:
        """Store a `piece` for `agent_id` behind what is here, in place of what is from its first
        token on; durable on return. The KV of the agents that `last` gives leaves for it after all
        others'. False, with a line in the log: it could not be used, or does not fit. Raises
        OSError."""
        try:
            key = Key(self._touch(encode_agent_id(agent_id)), _checked(piece))
            copied = [_Copied(*item) for item in piece["segments"]]
            fresh = self._missing(key, copied)
            segments = [self._open(key, item) for item in fresh]
            if segments:
                save = Save(agent_id, (), key.fingerprint, tuple(segments))
                commit_one(self._store, save, last)
        except (StorageError, ValueError, TypeError, KeyError) as error:
            _log.info("a copy of KV of %r is left out: %s", agent_id, error)
            return False
        return True

    def _stored(self, agent_id: str) -> Iterator[tuple[Key, tuple[Entry, ...]]]:
        kv = self._store.kv
        for key in kv.keys_of(self._touch(encode_agent_id(agent_id))):
            found = kv.usable(key)
            if found is not None and found.agent_id == agent_id:
                yield key, found.segments

    def _read(self, key: Key, entries: list[Entry], most: int) -> Iterator[list[Any]]:
        """The files of segments, as many as a piece has, up to one that cannot be read."""
        size = 0
        for entry in entries:
            size += entry.size
            if size > max(most, entry.size):
                return
            try:
                yield [entry.file, read_file(self._store.kv.folder(key) / entry.file)]
            except (OSError, NotAFile) as error:
                _log.warning("a KV segment cannot be copied: %s", error)
                return

    def _missing(self, key: Key, copied: list[_Copied]) -> list[_Copied]:
        """Those behind what is stored already."""
        found = self._store.kv.manifest(key)
        here = {entry.file for entry in found.segments} if found else set()
        while copied and copied[0].name in here:
            copied = copied[1:]
        return copied

    def _open(self, key: Key, copied: _Copied) -> Segment:
        """A segment whose content is what its name says. Raises SegmentUnreadable, NewerFormat."""
        match = SEGMENT_NAME.fullmatch(copied.name)
        if match is None:
            raise ValueError(f"{copied.name!r:.80} is no segment name")
        digest = copied.name.removesuffix(".safetensors").rpartition("-")[2]
        path = Path(key.fingerprint, key.agent, copied.name)
        segment = open_segment(copied.data, digest, path, self._store.kv.sealing)
        if [str(segment.start), str(segment.end)] != list(match.groups()):
            raise ValueError(f"{copied.name} holds tokens [{segment.start}, {segment.end})")
        return segment


def _name(key: Key, entry: Entry) -> str:
    return f"{key.fingerprint}/{entry.file}"


def _checked(piece: Mapping[str, Any]) -> str:
    """The fingerprint of a piece. Raises ValueError, KeyError, InvalidFingerprint."""
    if piece["version"] != VERSION:
        raise ValueError(f"a piece of version {piece['version']!r}, this program reads {VERSION}")
    return check_fingerprint(piece["fingerprint"])
