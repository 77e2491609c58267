"""The store: every agent's ledger and KV under one directory.

Below its root:

    agents/<encoded id>/ledger.log                   truth
    kv/<fingerprint>/<encoded id>/manifest.msgpack   commit record of KV
                                  seg-<start>-<end>-<hash>.safetensors
    store.lock                                       made anew if missing
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvactors.persistence.atomic import Files
from kvactors.persistence.commit import DirSyncs, Meter, Save, rounds, run_steps
from kvactors.persistence.errors import LedgerUnreadable, StoreClosed, StoreNotWritable
from kvactors.persistence.kv import Key, KvFolders
from kvactors.persistence.kv_commit import KvPart
from kvactors.persistence.ledger import decode_records
from kvactors.persistence.ledgers import LedgerPart, Ledgers
from kvactors.persistence.lock import StoreLock
from kvactors.persistence.naming import check_fingerprint, encode_agent_id
from kvactors.persistence.recovery import sweep
from kvactors.persistence.segment import Segment

__all__ = ["DEFAULT_CAP", "Save", "Store", "StoredAgent"]

DEFAULT_CAP = 64 << 30
"""Bytes that `kv/` may take by default (64 GiB); the ledgers are not counted."""

_log = logging.getLogger("kvactors")

Done = Callable[[Save], None]
Failed = Callable[[Save, str, BaseException], None]


@dataclass(frozen=True, slots=True)
class StoredAgent:
    """What the store knows about an agent. Sizes in bytes."""

    agent_id: str
    """The id; its directory's name where neither ledger nor manifest can tell."""
    records: int
    ledger_bytes: int
    kv_bytes: dict[str, int]
    """By fingerprint; with the manifest and what was set aside."""
    kv_tokens: dict[str, int]
    """By fingerprint."""
    last_used: float
    """Epoch seconds of the newest file."""
    problem: str | None
    """Why the ledger cannot be read."""


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
        disk_cap: int | None = DEFAULT_CAP,
    ) -> None:
        """Make what is missing, lock, and sweep what a crash left (recovery.py).

        `disk_cap`: bytes that `kv/` may take, None for no limit. Raises StoreLocked,
        StoreAlreadyOpen, StoreNotWritable.
        """
        self.root = Path(os.path.realpath(root))
        self._files = files if files is not None else Files()
        self._meter = Meter()
        self._kv = KvFolders(self._files, self.root / "kv", disk_cap)
        self._ledgers = Ledgers(self._files, self.root / "agents", self._kv.marks)
        try:
            self._make_folder(self.root)
            self._lock = StoreLock(self.root, self._files)
            self._open()
        except OSError as error:
            raise StoreNotWritable(self.root, str(error)) from error

    def _open(self) -> None:
        try:
            self._make_folder(self._ledgers.root)
            self._make_folder(self._kv.root)
            # Even where they stood: the process that made them may have been killed before it.
            self._sync_name(self.root)
            self._sync_name(self._kv.root)
            sweep(self._files, self._ledgers.root, self._kv)
        except BaseException:
            self._lock.release()
            raise

    def _make_folder(self, path: Path) -> None:
        if path.is_dir():
            return
        if not path.parent.is_dir():
            self._make_folder(path.parent)
        # Another process may make it at the same time.
        with suppress(FileExistsError):
            self._files.mkdir(path)
        if not path.is_dir():
            raise NotADirectoryError(f"{path} is not a directory")
        self._sync_name(path)

    def _sync_name(self, path: Path) -> None:
        # The folder above the store may be passable without being readable.
        with suppress(PermissionError):
            self._files.sync_dir(path.parent)

    def close(self) -> None:
        """Release the lock. Idempotent; nothing is ever pending here."""
        self._lock.release()

    def _check_open(self) -> None:
        if not self._lock.is_ours:
            raise StoreClosed(self.root)

    @property
    def bytes_written(self) -> int:
        """Bytes of ledger frames, segments and manifests written since it was opened."""
        return self._meter.written

    @property
    def kv_size(self) -> int:
        """Bytes that `kv/` takes: what the disk cap bounds."""
        return self._kv.size

    def agents(self) -> list[StoredAgent]:
        """Everything stored, by directory name. Reads every ledger. Raises OSError."""
        self._check_open()
        names = {path.name for path in self._ledgers.root.iterdir() if path.is_dir()}
        return [self._describe(name) for name in sorted(names.union(self._kv.agents()))]

    def _describe(self, encoded: str) -> StoredAgent:
        path = self._ledgers.path(encoded)
        agent_id, records, problem, size = encoded, 0, None, 0
        times = [0.0]
        if path.exists():
            size, times = path.stat().st_size, [path.stat().st_mtime]
        kv_bytes, kv_tokens = {}, {}
        for key in self._kv.keys_of(encoded):
            usage, manifest = self._kv.usage(key), self._kv.manifest(key)
            agent_id = manifest.agent_id if manifest else agent_id
            kv_bytes[key.fingerprint] = usage.size if usage else 0
            kv_tokens[key.fingerprint] = manifest.tokens if manifest else 0
            times.append(usage.last_used if usage else 0.0)
        try:
            found = self._ledgers.load(encoded)
            records = found.records if found else 0
        except LedgerUnreadable as error:
            problem = error.reason
        agent_id = self._ledgers.owner(encoded) or agent_id
        return StoredAgent(agent_id, records, size, kv_bytes, kv_tokens, max(times), problem)

    def read_ledger(self, agent_id: str) -> tuple[dict[str, Any], ...] | None:
        """The agent's records in order; None if it was never stored.

        A torn last frame is left out (and cut when the ledger is next appended to), with
        a warning. Raises LedgerUnreadable, OSError.
        """
        self._check_open()
        found = self._ledgers.load_of(agent_id)
        if found is None:
            return None
        path = self._ledgers.path(encode_agent_id(agent_id))
        if found.torn is not None:
            _log.warning("%s ends in a torn write, which is cut: %s", path, found.torn)
        return decode_records(found, path)

    def read_kv(self, agent_id: str, fingerprint: str) -> tuple[Segment, ...]:
        """The agent's KV, contiguous from token 0 and verified; () if there is none.

        What cannot be used (checksum, version, truncated) is set aside with a warning on
        the logger "kvactors"; what precedes it is returned, and what follows is deleted,
        since it cannot be reached any more. Raises InvalidFingerprint.
        """
        self._check_open()
        return self._kv.read(agent_id, check_fingerprint(fingerprint))

    def kv_extent(self, agent_id: str, fingerprint: str) -> int:
        """Tokens whose KV is stored, by the manifest; reads no segment."""
        self._check_open()
        key = Key(encode_agent_id(agent_id), check_fingerprint(fingerprint))
        manifest = self._kv.manifest(key)
        return manifest.tokens if manifest and manifest.agent_id == agent_id else 0

    def commit(self, saves: Sequence[Save], *, durable: Done, cached: Done, failed: Failed) -> None:
        """Write saves of many agents with one group of syncs.

        Phase 1 appends all ledger frames and syncs them: `durable(save)`. Phase 2 writes
        segments, then manifests: `cached(save)`, for saves with a fingerprint (without
        segments there is nothing to write, and it is called at once). A save that fails
        gets `failed(save, "ledger" or "kv", error)`, is taken back, and leaves the others
        and its earlier state as they are; without its ledger part its KV part is not
        tried. The callbacks run on this thread and must not raise.

        Several saves of one agent are committed one after another, in order.
        """
        self._check_open()
        for group in rounds(saves):
            self._commit_round(group, durable, cached, failed)

    def _commit_round(
        self, saves: Sequence[Save], durable: Done, cached: Done, failed: Failed
    ) -> None:
        parents = DirSyncs(self._files)
        parts = [
            LedgerPart(save, ledgers=self._ledgers, parents=parents, meter=self._meter)
            for save in saves
        ]
        parts = run_steps(
            parts, LedgerPart.STEPS, lambda part, error: failed(part.save, "ledger", error)
        )
        for part in parts:
            durable(part.save)
        self._commit_kv(parts, cached, failed)

    def _commit_kv(self, written: Sequence[LedgerPart], cached: Done, failed: Failed) -> None:
        parents = DirSyncs(self._files)
        pinned = {
            Key(encode_agent_id(part.save.agent_id), part.save.fingerprint or "")
            for part in written
        }
        parts = [
            KvPart(
                part.save,
                kv=self._kv,
                ledger=part.after,
                pinned=pinned,
                parents=parents,
                meter=self._meter,
            )
            for part in written
            if part.save.fingerprint is not None and part.save.segments
        ]
        for ledger_part in written:
            if ledger_part.save.fingerprint is not None and not ledger_part.save.segments:
                cached(ledger_part.save)
        parts = run_steps(parts, KvPart.STEPS, lambda part, error: failed(part.save, "kv", error))
        for part in parts:
            try:
                part.finish()
            except OSError as error:
                _log.warning("could not delete what was replaced: %s", error)
            cached(part.save)

    def fingerprints(self, agent_id: str) -> list[str]:
        """The models under which the store has KV of an agent."""
        self._check_open()
        return [key.fingerprint for key in self._kv.keys_of(encode_agent_id(agent_id))]

    def forget(self, agent_id: str) -> None:
        """Delete the agent's KV, then its ledger, durably. Raises OSError.

        A crash in between leaves an agent that is whole but cold: forget it again.
        """
        self._check_open()
        for key in self._kv.keys_of(encode_agent_id(agent_id)):
            self._kv.drop(key)
        self._ledgers.remove(agent_id)
