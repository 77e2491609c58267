"""The store of a node and an object store: what is copied there, and what came from there."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.system.backups import add_agent
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.turns.messages_store import WithStore
from kvactors.persistence.backup.backup import Backup
from kvactors.persistence.backup.objects import open_objects
from kvactors.persistence.backup.restore import read_notes
from kvactors.persistence.errors import LedgerUnreadable, NewerFormat
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.files.packing import unpack
from kvactors.persistence.store.agent_files import HeldFiles

__all__ = ["StoreBackups"]


class StoreBackups:
    """Backups (`kvactors.actors.cluster.protocol.backups`) of the store of a system with this
    `lifecycle`, at `root`. On the loop; files are read and sent on threads."""

    def __init__(self, lifecycle: Lifecycle, root: Path) -> None:
        self._lifecycle = lifecycle
        self._root = root

    @cached_property
    def spawned(self) -> Mapping[str, Record]:
        """What a backup of a cluster noted of its agents; {} where the store is none of that."""
        notes = read_notes(self._root)
        return dict(unpack(notes)) if notes else {}

    async def stream(self, record: Record) -> AsyncIterator[Record]:
        """Of each of "agents": its "entry" in a snapshot, None where nothing is stored of it here;
        or the "problem" for which it cannot be read; its bytes ("nbytes"), and new ones ("added").
        Raises BackupFailed, whatever the `record` says of its "url"."""
        backup = await asyncio.to_thread(lambda: Backup(open_objects(record["url"])))
        for agent in record["agents"]:
            yield await asyncio.to_thread(self._copy, backup, agent)

    def _copy(self, backup: Backup, agent: str) -> dict[str, Any]:
        before = backup.nbytes, backup.added
        found: dict[str, Any] = {"agent": agent, "entry": None, "problem": None}
        try:
            entry = add_agent(backup, encode_agent_id(agent), self._look)
            found["entry"] = entry and entry.plain()
        except (LedgerUnreadable, NewerFormat, OSError) as error:
            found["problem"] = str(error)
        return {**found, "nbytes": backup.nbytes - before[0], "added": backup.added - before[1]}

    def _look(self, encoded: str) -> HeldFiles | None:
        store = self._lifecycle.require_store("a backup needs")
        work = WithStore(lambda store: store.files.of(encoded))
        found: HeldFiles | None = self._lifecycle.ask(store, work)
        return found
