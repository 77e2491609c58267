"""A new agent with its KV, segment by segment, whole or not at all. Persistence thread only.

Segments come first, each synced under its name in the agent's own folder: while no manifest names
them they do not exist, and what a crash leaves of them is swept when the agent is next touched.
Then the ledger, then the manifests: a crash between these leaves an agent that is whole but cold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from kvactors.core.cache.segment import Segment
from kvactors.persistence.commit.save import Save
from kvactors.persistence.errors import AgentExists, KvGap
from kvactors.persistence.files.atomic import replace_file, temp_path
from kvactors.persistence.files.naming import (
    MANIFEST_NAME,
    check_fingerprint,
    encode_agent_id,
    segment_name,
)
from kvactors.persistence.files.segment import encode_segment, seal_segment
from kvactors.persistence.kv.disk_limit import Eviction
from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.kv.manifest import Entry, Manifest, encode_manifest
from kvactors.persistence.store.group import commit_one
from kvactors.persistence.store.parts import StoreParts

__all__ = ["Arrival", "Arrivals"]


class Arrivals:
    """Agents that come to `store`; `touch` sweeps an agent before its files are looked at."""

    def __init__(self, store: StoreParts, touch: Callable[[str], str]) -> None:
        self._store = store
        self._touch = touch

    @contextmanager
    def of(self, agent_id: str) -> Iterator[Arrival]:
        """Within it: what comes of `agent_id`, which is new. What raises there leaves nothing.
        Raises AgentExists, LedgerUnreadable, OSError."""
        encoded = self._touch(encode_agent_id(agent_id))
        ledgers, kv = self._store.ledgers, self._store.kv
        if ledgers.load_of(agent_id) is not None or kv.keys_of(encoded):
            raise AgentExists(agent_id)
        try:
            yield Arrival(self._store, agent_id)
        except BaseException:
            for key in kv.keys_of(encoded):
                kv.drop(key)
            ledgers.remove(agent_id)
            raise


class Arrival:
    """One, `agent_id`, into `store`."""

    def __init__(self, store: StoreParts, agent_id: str) -> None:
        self._store, self._agent_id = store, agent_id
        self._encoded = encode_agent_id(agent_id)
        self._entries: dict[Key, list[Entry]] = {}

    def add(self, fingerprint: str, segment: Segment) -> None:
        """The next `segment` of its KV under a `fingerprint`, from token 0 on. Raises KvGap,
        InvalidFingerprint, MaxDiskExceeded, SegmentUnreadable, OSError."""
        kv = self._store.kv
        key = Key(self._encoded, check_fingerprint(fingerprint))
        entries = self._entries.setdefault(key, [])
        due = entries[-1].end if entries else 0
        if segment.start != due or segment.end <= due:
            raise KvGap(f"segment [{segment.start}, {segment.end}) where one from {due} on is due")
        if not entries:
            for folder in (kv.folder(key).parent, kv.folder(key)):
                if not folder.is_dir():
                    kv.files.mkdir(folder)
            # Known from here on, so that an error takes it back.
            kv.measure(key)
        entries.append(self._write(key, segment))
        kv.measure(key)

    def finish(self, records: Sequence[dict[str, Any]]) -> None:
        """All of its KV is there: it is an agent with these `records` from now on, durably. Raises
        MaxDiskExceeded, OSError."""
        store, kv = self._store, self._store.kv
        sync_once = cache(kv.files.sync_dir)
        for key in self._entries:
            sync_once(kv.folder(key))
            kv.settle(key, sync_once)
        commit_one(store, Save(self._agent_id, tuple(records), None, ()))
        ledger = store.ledgers.state(self._agent_id)
        for key, entries in self._entries.items():
            manifest = Manifest(
                self._agent_id, key.fingerprint, ledger.length, ledger.checksum, tuple(entries)
            )
            data = encode_manifest(manifest, kv.sealing)
            self._make_room(key, len(data))
            replace_file(kv.files, kv.folder(key) / MANIFEST_NAME, data)
            store.counter.written += len(data)
            kv.measure(key)
            for entry in entries:
                kv.holders.note(key, entry.file)

    def _write(self, key: Key, segment: Segment) -> Entry:
        kv = self._store.kv
        chunks, digest, size = encode_segment(segment, kv.sealing)
        name = segment_name(segment.start, segment.end, digest)
        path = kv.folder(key) / name
        source = kv.holders.find(key.fingerprint, name, size)
        if source is not None and kv.holders.link(kv.files, source, path):
            kv.measure(Key(source.parent.name, key.fingerprint))
        else:
            self._make_room(key, size)
            sealed = seal_segment(chunks, key.fingerprint, digest, kv.sealing)
            kv.files.write_temp(temp_path(path), sealed)
            kv.files.sync(temp_path(path))
            kv.files.rename(temp_path(path), path)
            self._store.counter.written += size
        return Entry(segment.start, segment.end, name, size, digest, segment.tokens_hash)

    def _make_room(self, key: Key, size: int) -> None:
        self._store.limit.make_room(key, size, Eviction(self._entries.keys()))
