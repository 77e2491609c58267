"""The store: every agent's ledger and KV under one directory. Persistence thread only.

Below its root:

    agents/<encoded id>/ledger.log                   truth
    kv/<fingerprint>/<encoded id>/manifest.msgpack   commit record of KV
                                  seg-<start>-<end>-<hash>.safetensors
    aside/<encoded id>/<n>/ledger.log                what another owner's ledger has no place for
    store.lock                                       made anew if missing
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kvactors.core.cache.segment import Segment
from kvactors.persistence.commit.save import Save
from kvactors.persistence.commit.steps import rounds
from kvactors.persistence.errors import StoreClosed, StoreNotWritable
from kvactors.persistence.files.atomic import Files
from kvactors.persistence.files.encryption import EncryptionKey, Sealing
from kvactors.persistence.files.lock import StoreLock
from kvactors.persistence.files.naming import check_fingerprint, encode_agent_id
from kvactors.persistence.kv.disk_limit import DiskLimit
from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.kv.folders import KvFolders
from kvactors.persistence.ledger.folder import Ledgers
from kvactors.persistence.store.agent_files import AgentFiles
from kvactors.persistence.store.arrivals import Arrivals
from kvactors.persistence.store.fork import fork
from kvactors.persistence.store.group import Done, Failed, Reports, commit_group
from kvactors.persistence.store.listing import (
    Listing,
    StoreCounts,
    StoredAgent,
    count,
    describe,
)
from kvactors.persistence.store.opening import make_folder, open_folders
from kvactors.persistence.store.parts import StoreParts
from kvactors.persistence.store.piece_copies import PieceCopies
from kvactors.persistence.store.record_copies import RecordCopies
from kvactors.persistence.store.recovery import sweep_agent
from kvactors.persistence.store.verify import Problem, verify_agent

__all__ = ["DEFAULT_MAX_DISK", "Save", "Store", "StoredAgent"]

DEFAULT_MAX_DISK = 64 << 30
"""Bytes that `kv/` may take by default (64 GiB); the ledgers are not counted."""

_log = logging.getLogger(__name__)


class Store:
    """One process's store. Every method belongs to the persistence thread.

    After `close`, and in a process forked from the one that opened it, every method but
    `close` raises StoreClosed.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        files: Files | None = None,
        max_disk: int | None = DEFAULT_MAX_DISK,
        encryption_key: EncryptionKey | None = None,
        share_segments: bool = True,
    ) -> None:
        """Make what is missing below `root`, through `files`, and lock. Agents are only listed:
        each is checked, and what a crash left of it is swept (recovery.py), when it is first read
        or written.

        `max_disk`: bytes that `kv/` may take, None for no limit. `encryption_key`: 32 bytes,
        or a function that returns them; a store is encrypted as a whole or not.
        `share_segments`: link a segment that another agent has instead of writing it, or, for a
        fork, copying it. Raises EncryptionError (EncryptionMismatch, WrongKey), StoreLocked,
        StoreAlreadyOpen, StoreNotWritable.
        """
        self.root = Path(os.path.realpath(root))
        self._files = files if files is not None else Files()
        self._touched: set[str] = set()
        sealing = None if encryption_key is None else Sealing(encryption_key)
        self._kv = KvFolders(self._files, self.root / "kv", sealing, share=share_segments)
        self._ledgers = Ledgers(self._files, self.root / "agents", self._kv.marks, sealing)
        self.limit = DiskLimit(self._kv, max_disk)
        self._parts = StoreParts(self._ledgers, self._kv, self.limit)
        self.arrivals = Arrivals(self._parts, self._touch)
        self.files = AgentFiles(self._parts, self._touch)
        self.listing = Listing(self._parts, self.agent_folders, self._touch)
        self.records = RecordCopies(self._parts, self.agent_folders, self._touch)
        self.pieces = PieceCopies(self._parts, self._touch)
        try:
            make_folder(self._files, self.root)
            self._lock = StoreLock(self.root, self._files)
            try:
                open_folders(self._files, self.root, self._ledgers, self._kv)
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise StoreNotWritable(self.root, str(error)) from error

    def close(self) -> None:
        """Release the lock. Idempotent; nothing is ever pending here."""
        self._lock.release()

    def _check_open(self) -> None:
        if not self._lock.is_ours:
            raise StoreClosed(self.root)
        self._lock.check()

    def _touch(self, encoded: str) -> str:
        """Sweep an agent's folders, once, before they are used."""
        self._check_open()
        if encoded not in self._touched:
            self._touched.add(encoded)
            sweep_agent(self._files, self._ledgers.root, self._kv, encoded)
        return encoded

    def sweep(self) -> None:
        """Sweep the folders of every agent that was not touched yet. Raises OSError."""
        self._check_open()
        for encoded in self.agent_folders():
            self._touch(encoded)

    def agent_folders(self) -> list[str]:
        """Names of the agents' folders: their encoded ids. Reads none of them."""
        self._check_open()
        names = {path.name for path in self._ledgers.root.iterdir() if path.is_dir()}
        return sorted(names.union(self._kv.agents()))

    @property
    def bytes_written(self) -> int:
        """Bytes of ledger frames, segments and manifests written since it was opened."""
        return self._parts.counter.written

    @property
    def kv_size(self) -> int:
        """Bytes that `kv/` takes: what max_disk bounds. A shared file counts once."""
        return self._kv.disk.size

    def agents(self) -> list[StoredAgent]:
        """Everything stored, by directory name. Reads every ledger, sweeps. Raises OSError."""
        self.sweep()
        return [describe(self._ledgers, self._kv, name) for name in self.agent_folders()]

    def counts(self, fingerprint: str, in_memory: Iterable[str]) -> StoreCounts:
        """What is stored of all agents but those in memory. Reads nothing after the first time,
        when folders are listed. Raises InvalidFingerprint, OSError."""
        self._check_open()
        encoded = {encode_agent_id(agent_id) for agent_id in in_memory}
        check_fingerprint(fingerprint)
        return count(self._parts, fingerprint, encoded)

    def has(self, agent_id: str) -> bool:
        """Whether anything is stored of an agent, readable or not."""
        encoded = self._touch(encode_agent_id(agent_id))
        return self._ledgers.has(encoded) or bool(self._kv.keys_of(encoded))

    def read_ledger(self, agent_id: str) -> tuple[dict[str, Any], ...] | None:
        """The agent's records in order; None if it was never stored.

        A torn last frame is left out (and cut when the ledger is next appended to), with
        a warning. Raises LedgerUnreadable, NewerFormat, OSError.
        """
        self._touch(encode_agent_id(agent_id))
        found = self._ledgers.load_of(agent_id)
        if found is None:
            return None
        path = self._ledgers.path(encode_agent_id(agent_id))
        if found.torn is not None:
            _log.warning("%s ends in a torn write, which is cut: %s", path, found.torn)
        return self._ledgers.records(found, path)

    def read_kv(self, agent_id: str, fingerprint: str, *, used: bool = True) -> tuple[Segment, ...]:
        """The KV of `agent_id` under `fingerprint`, contiguous from token 0 and verified; () if
        there is none. `used`: whether it is a use, for the order of eviction.

        What cannot be used (checksum, version, truncated) is set aside with a warning on
        the logger "kvactors"; what precedes it is returned, and what follows is deleted,
        since it cannot be reached any more. KV of a newer format is left as it is, with a
        warning. Raises InvalidFingerprint.
        """
        self._touch(encode_agent_id(agent_id))
        return self._kv.read(agent_id, check_fingerprint(fingerprint), used=used)

    def kv_extent(self, agent_id: str, fingerprint: str) -> int:
        """Tokens whose KV is stored, by the manifest; reads no segment."""
        key = Key(self._touch(encode_agent_id(agent_id)), check_fingerprint(fingerprint))
        manifest = self._kv.usable(key)
        return manifest.tokens if manifest and manifest.agent_id == agent_id else 0

    def commit(
        self,
        saves: Sequence[Save],
        *,
        durable: Done,
        cached: Done,
        failed: Failed,
        pace: Callable[[], object] = bool,
    ) -> None:
        """Write saves of many agents with one group of syncs.

        Phase 1 appends all ledger frames and syncs them: `durable(save)`. Phase 2 writes
        segments, then manifests: `cached(save)`, for saves with a fingerprint (without
        segments there is nothing to write, and it is called at once). A save that fails
        gets `failed(save, "ledger" or "kv", error)`, is taken back, and leaves the others
        and its earlier state as they are; without its ledger part its KV part is not
        tried. The callbacks run on this thread and must not raise. `pace()` is called after
        each segment that was hashed, written or synced, and may take its time.

        Over max_disk, KV is evicted: that of the least recently used agents first, of those
        that `limit.busy` gives last; `limit.evicted` is told. What was too much before, as under
        a higher max_disk, has left when this returns, even where its own agent's save failed.

        A segment that another agent is known to have is linked, not written. Several saves
        of one agent are committed one after another, in order.
        """
        self._check_open()
        for save in saves:
            self._touch(encode_agent_id(save.agent_id))

        reports = Reports(durable, cached, failed, pace)
        for group in rounds(saves):
            commit_group(self._parts, group, reports)
        self.limit.hold()

    def fork(self, parent_id: str, child_id: str) -> None:
        """Make a new agent that starts with all of another one's stored memory.

        The child has a ledger of its own with the parent's records, and every segment of the
        parent as a hard link (a copy where there are none, or nothing is shared), under every
        fingerprint. Either
        may be forgotten first. Durable on return; a crash leaves no child, or one that is
        whole but may be cold. Where max_disk leaves no room the child is cold.

        Raises AgentNotStored, AgentExists, LedgerUnreadable, NewerFormat, OSError; then
        there is no child.
        """
        for agent_id in (parent_id, child_id):
            self._touch(encode_agent_id(agent_id))
        fork(self._parts, parent_id, child_id)

    def verify(self) -> Iterator[Problem]:
        """Every file that cannot be used. Reads the whole store, changes nothing."""
        self._check_open()
        for encoded in self.agent_folders():
            yield from verify_agent(self._ledgers, self._kv, encoded)

    def gc(self, fingerprints: Collection[str] = ()) -> int:
        """Delete what crashes left, what was set aside, and all KV under `fingerprints`.

        Gives the bytes of KV that were freed. Raises InvalidFingerprint, OSError.
        """
        before = self.kv_size
        self.sweep()
        for encoded in self._kv.agents():
            for key in self._kv.keys_of(encoded):
                if key.fingerprint in map(check_fingerprint, fingerprints):
                    self._kv.drop(key)
                else:
                    self._kv.remove_bad(key)
        return before - self.kv_size

    def fingerprints(self, agent_id: str | None = None) -> list[str]:
        """Of the models under which there is KV: of one agent, or of any."""
        self._check_open()
        if agent_id is not None:
            self._touch(encode_agent_id(agent_id))
            return [key.fingerprint for key in self._kv.keys_of(encode_agent_id(agent_id))]
        keys = (key for encoded in self._kv.agents() for key in self._kv.keys_of(encoded))
        return sorted({key.fingerprint for key in keys})

    def forget(self, agent_id: str) -> None:
        """Delete the agent's KV, then its ledger, durably. Raises OSError.

        A crash in between leaves an agent that is whole but cold: forget it again.
        """
        encoded = self._touch(encode_agent_id(agent_id))
        for key in self._kv.keys_of(encoded):
            self._kv.drop(key)
        self._ledgers.remove(agent_id)
        self._touched.discard(encoded)
