"""The ledger part of a commit: one frame for each save. Persistence thread only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kvactors.persistence.commit.steps import CommitPart, GroupSyncs, WriteCounter
from kvactors.persistence.errors import LedgerUnreadable
from kvactors.persistence.files.atomic import temp_path
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.ledger.folder import Ledgers, LedgerState
from kvactors.persistence.ledger.frames import encode_header, encode_records, payload_checksum

__all__ = ["LedgerPart"]


@dataclass(slots=True)
class LedgerPart(CommitPart):
    """Appends one save's records as one frame. STEPS are run in order."""

    ledgers: Ledgers = field(kw_only=True)
    syncs: GroupSyncs = field(kw_only=True)
    counter: WriteCounter = field(kw_only=True)
    before: LedgerState = field(init=False, default=LedgerState())
    after: LedgerState = field(init=False, default=LedgerState())

    @property
    def _path(self) -> Path:
        return self.ledgers.path(encode_agent_id(self.save.agent_id))

    @property
    def _is_new(self) -> bool:
        return self.before.frames == 0

    @property
    def _unsettled(self) -> bool:
        """Whether something may not be on the medium: this save's frame or, the first time since
        opening, what a process wrote that was killed before its sync."""
        left = self.before.frames > 0 and not self.ledgers.is_named(self.save.agent_id)
        return left or bool(self.save.records)

    def write(self) -> None:
        """Append the frame, or write a new ledger under a temporary name; unsynced."""
        self.before = self.after = self.ledgers.state(self.save.agent_id)
        if not self.save.records:
            return
        number = max(1, self.before.frames)
        sealing, agent_id = self.ledgers.sealing, self.save.agent_id
        data = frame = encode_records(self.save.records, number, agent_id, sealing)
        if self._is_new:
            data = encode_header(agent_id, sealing) + frame
            self._write_new(data)
        else:
            self._append(data)
        self.counter.written += len(data)
        length = self.before.length + len(data)
        records = self.before.records + len(self.save.records)
        self.after = LedgerState(length, number + 1, payload_checksum(frame), records)

    def _write_new(self, data: bytes) -> None:
        files, folder = self.ledgers.files, self._path.parent
        self.undo_actions.append(lambda: files.rmdir(folder))
        if not folder.is_dir():
            files.mkdir(folder)
        temp = temp_path(self._path)
        self.undo_actions.append(lambda: files.unlink(temp))
        files.write_temp(temp, [data])

    def _append(self, frame: bytes) -> None:
        files, path, length = self.ledgers.files, self._path, self.before.length
        size = path.stat().st_size if path.exists() else 0
        if size < length:
            raise LedgerUnreadable(path, f"it has {size} of its {length} bytes: who cut it?")
        if size > length:
            # A torn frame of the last crash, or of a failure that could not be taken back. Synced,
            # or another loss of power may leave its header with bytes of the next one behind it.
            files.truncate(path, length)
            files.sync(path)

        def take_back() -> None:
            files.truncate(path, length)
            files.sync(path)

        self.undo_actions.append(take_back)
        files.append(path, frame)

    def sync(self) -> None:
        """Put the frame on the medium, and those that are there, which KV is about to name."""
        if self._unsettled:
            path = self._path
            self.syncs.sync(temp_path(path) if self._is_new else path)

    def publish(self) -> None:
        """Give a new ledger its name."""
        if self.save.records and self._is_new:
            files, path = self.ledgers.files, self._path
            self.undo_actions.append(lambda: files.unlink(path))
            files.rename(temp_path(path), path)

    def sync_folders(self) -> None:
        """Make the ledger's name durable.

        Also the first time since opening: the process that made the ledger may have
        been killed between its rename and this.
        """
        if self._unsettled and not self.ledgers.is_named(self.save.agent_id):
            self.syncs.sync(self._path.parent)
            if self._is_new:
                self.syncs.sync(self.ledgers.root)

    def finish(self) -> None:
        """Remember the new length."""
        self.undo_actions.clear()
        if self._unsettled:
            self.ledgers.remember(self.save.agent_id, self.after)

    STEPS = (write, sync, publish, sync_folders, finish)
