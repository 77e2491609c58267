"""The whole store into an object store, while the system runs: `AgentSystem.backup`. Any thread."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvactors.actors.system.export import unwatched
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.turns.checks import check_callable, check_flag
from kvactors.actors.turns.messages_store import WithStore
from kvactors.core.errors import InvalidConfig
from kvactors.persistence.backup.backup import Backup, BackupReport
from kvactors.persistence.backup.objects import open_objects
from kvactors.persistence.backup.snapshot import AgentEntry
from kvactors.persistence.errors import LedgerUnreadable, NewerFormat
from kvactors.persistence.formats.archive import OnStep
from kvactors.persistence.store.agent_files import HeldFiles
from kvactors.persistence.store.store import Store

__all__ = ["StoreBackups", "add_agent", "back_up"]

logger = logging.getLogger("kvactors")

# Looks at an agent whose files leave (merged, evicted) while they are copied.
LOOKS = 4


Look = Callable[[str], HeldFiles | None]


def back_up(
    backup: Backup, root: Path, names: Sequence[str], look: Look, on_step: OnStep
) -> BackupReport:
    """Add the agents whose folders are `names` in the store at `root`, and the databases beside
    them, to a `backup` and finish it; `look` gives the files of one as they stand, `on_step(done,
    steps)` is called behind each. KV that leaves again and again is left out; what cannot be read
    is skipped, and the report says so."""
    for done, name in enumerate(names, 1):
        try:
            add_agent(backup, name, look)
        except (LedgerUnreadable, NewerFormat, OSError) as error:
            logger.warning("%s is skipped by a backup: %s", name, error)
            backup.skip(name, f"{name}: {error}")
        on_step(done, len(names))
    # Behind them: whoever is in the snapshot is known to it.
    backup.add_databases(root)
    return backup.finish()


def add_agent(backup: Backup, name: str, look: Look) -> AgentEntry | None:
    """Add the agent whose folder is `name` to a `backup`, as `look` gives it; None where nothing is
    stored of it. Raises LedgerUnreadable, NewerFormat, OSError."""
    for left in reversed(range(LOOKS)):
        held = look(name)
        if held is None:
            break
        try:
            return backup.add(held if left else replace(held, kv=()))
        except OSError:
            # Without KV nothing is read any more.
            continue
    return None


class StoreBackups:
    """Backups of one system's store; `lifecycle` has its actors."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    def backup(
        self,
        url: str,
        options: Mapping[str, Any] | None = None,
        on_step: OnStep = unwatched,
        *,
        check: bool = False,
    ) -> BackupReport:
        """Copy what the object store at `url` (s3://bucket/folder, file:///folder) lacks of all
        finished turns and their KV there, and what a server knows (`clients.db`), and name it: a
        snapshot.

        `options`: what obstore's `from_url` takes beside the environment. Agents go on meanwhile:
        each is copied as its last save left it. `on_step(done, agents)` is called as it goes. One
        whose ledger cannot be read is named in the report (`skipped`), and the rest goes on. With
        a `check` all that is there is read first, and what is damaged is copied anew.
        `kvactors store restore` makes a store of it. Encrypted stores stay encrypted. Raises
        BackupFailed, InvalidConfig, SystemStopped, OSError.
        """
        if not isinstance(url, str) or not url:
            raise InvalidConfig(f"url must be that of an object store, not {url!r:.80}")
        if options is not None and not isinstance(options, Mapping):
            raise InvalidConfig(f"options must be a mapping, not {type(options).__name__}")
        check_callable("on_step", on_step)
        check_flag("check", check)
        self._lifecycle.require_running()
        store = self._lifecycle.require_store("a backup needs")

        def ask(work: Callable[[Store], Any]) -> Any:
            return self._lifecycle.ask(store, WithStore(work))

        backup = Backup(open_objects(url, options), check=check)
        root, names = ask(lambda store: (store.root, store.agent_folders()))
        return back_up(backup, root, names, lambda name: ask(lambda s: s.files.of(name)), on_step)
