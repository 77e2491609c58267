"""Ledgers record by record, from one store to another: a replica is a store that has the same.
Persistence thread only.

A copy of a record is its msgpack, in an encrypted store sealed for its agent and place: it can be
read where the key is the same, and the same record has the same bytes whoever copies it. How many
records a frame has is each store's own business, and manifests do not travel: they say what their
own ledger was.

    aside/<encoded id>/<n>/ledger.log       a ledger as it was before records were set aside

What is set aside is never read again and never deleted, by `forget` neither. To look at one, copy
it to `agents/<encoded id>/ledger.log` of an empty folder, and open that as a store.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from kvactors.persistence.commit.save import Save
from kvactors.persistence.errors import (
    ImportRejected,
    LedgerUnreadable,
    NewerFormat,
    RecordGap,
    RecordsPart,
)
from kvactors.persistence.files.atomic import replace_file
from kvactors.persistence.files.encryption import BrokenSeal, refuse_newer
from kvactors.persistence.files.naming import LEDGER_NAME, encode_agent_id
from kvactors.persistence.files.packing import pack
from kvactors.persistence.files.reading import read_file
from kvactors.persistence.ledger.copies import make_copy, open_copy
from kvactors.persistence.ledger.frames import Scan
from kvactors.persistence.store.group import commit_one
from kvactors.persistence.store.opening import make_folder
from kvactors.persistence.store.parts import StoreParts

__all__ = ["ASIDE", "RecordCopies"]

ASIDE = "aside"

_log = logging.getLogger(__name__)

# Too many open files.
_OF_THE_PROCESS = (errno.EMFILE, errno.ENFILE)


class RecordCopies:
    """The ledgers of `store`; `folders` lists the directories of all agents, `touch` sweeps one
    before its files are read."""

    def __init__(
        self, store: StoreParts, folders: Callable[[], list[str]], touch: Callable[[str], str]
    ) -> None:
        self._store = store
        self._folders = folders
        self._touch = touch
        # A node of a cluster asks for the counts again and again.
        self._ids: dict[str, str] = {}

    def counts(self) -> dict[str, int]:
        """How many records each agent has. Those whose ledgers cannot be read are left out, with a
        warning. Reads every ledger, once. Raises OSError for what is no one ledger's matter."""
        found: dict[str, int] = {}
        for folder in self._folders():
            try:
                agent_id = self._id_of(folder)
                records = self._store.ledgers.state(agent_id).records if agent_id else 0
            except (LedgerUnreadable, NewerFormat) as error:
                _log.warning("%s", error)
                continue
            except OSError as error:
                if error.errno in _OF_THE_PROCESS:
                    raise
                _log.warning("the ledger in %s cannot be read: %s", folder, error)
                continue
            if records:
                found[agent_id] = records
        return found

    def _id_of(self, folder: str) -> str:
        """Whose folder it is; "" where there is no ledger."""
        if folder not in self._ids:
            ledger = self._store.ledgers.load(self._touch(folder))
            if ledger is None:
                return ""
            self._ids[folder] = ledger.agent_id
        return self._ids[folder]

    def read(self, agent_id: str, start: int = 0) -> list[bytes]:
        """Copies of the records of `agent_id` from the `start`-th on; none where there are no more.
        Raises LedgerUnreadable, NewerFormat, OSError."""
        sealing = self._store.ledgers.sealing
        records = enumerate(self._records(agent_id, start), start)
        return [make_copy(sealing, agent_id, place, record) for place, record in records]

    def append(
        self, agent_id: str, start: int, copies: Sequence[bytes], of: str | None = None
    ) -> int:
        """Append to the ledger of `agent_id` those of `copies`, the first of which is of the
        `start`-th record, that it has not yet; synced on return. How many records it has then.
        `of`: whose records they were, where it begins with another agent's.

        Raises, with nothing written: RecordGap if records before `start` are missing, RecordsPart
        if one that is here already says something else, ImportRejected for what is no copy or was
        sealed with another key; LedgerUnreadable, NewerFormat, OSError.
        """
        self._touch(encode_agent_id(agent_id))
        have = self._store.ledgers.state(agent_id).records
        if start > have:
            raise RecordGap(agent_id, have, start)
        whose = of or agent_id
        records = [self._opened(whose, place, copy) for place, copy in enumerate(copies, start)]
        known = self._records(agent_id, start) if start < have else ()
        for place, (mine, theirs) in enumerate(zip(known, records, strict=False), start):
            if pack(mine) != pack(theirs):
                raise RecordsPart(agent_id, place)
        fresh = records[len(known) :]
        if fresh:
            commit_one(self._store, Save(agent_id, tuple(fresh), None, ()))
        return have + len(fresh)

    def set_aside(self, agent_id: str, keep: int) -> Path | None:
        """Let the ledger of `agent_id` end behind its first `keep` records, and delete its KV. The
        folder in which the whole ledger is now; None if it had no more records.

        Synced on return. A crash leaves the agent as it was, maybe cold, and with a copy aside.
        Raises LedgerUnreadable, NewerFormat, OSError; then it is as after a crash.
        """
        encoded = self._touch(encode_agent_id(agent_id))
        ledgers, kv = self._store.ledgers, self._store.kv
        found = ledgers.load_of(agent_id)
        if found is None or found.records <= keep:
            return None
        path = ledgers.path(encoded)
        records = ledgers.records(found, path)
        folder = self._copy_aside(encoded, path, found)
        # The KV first: its manifests saw the ledger as long as it is.
        for key in kv.keys_of(encoded):
            kv.drop(key)
        if keep:
            self._store.counter.written += ledgers.rewrite(agent_id, records[:keep])
        else:
            ledgers.remove(agent_id)
        lost = len(records) - keep
        _log.warning("%d records of %r are set aside, in %s", lost, agent_id, folder)
        return folder

    def _records(self, agent_id: str, start: int) -> tuple[dict[str, Any], ...]:
        self._touch(encode_agent_id(agent_id))
        return self._store.ledgers.records_from(agent_id, start)

    def _copy_aside(self, encoded: str, path: Path, found: Scan) -> Path:
        files, above = self._store.ledgers.files, self._store.ledgers.root.parent / ASIDE / encoded
        folder = next(f for n in count(1) if not (f := above / str(n)).exists())
        make_folder(files, folder)
        replace_file(files, folder / LEDGER_NAME, read_file(path)[: found.length])
        return folder

    def _opened(self, agent_id: str, place: int, copy: bytes) -> dict[str, Any]:
        what = f"record {place} of {agent_id!r}"
        refuse_newer(copy, what)
        try:
            return open_copy(self._store.ledgers.sealing, agent_id, place, copy)
        except BrokenSeal as error:
            reason = f"{error}: stores that copy from each other need the same encryption_key"
            raise ImportRejected(what, reason) from error
        except ValueError as error:
            raise ImportRejected(what, str(error)) from error
