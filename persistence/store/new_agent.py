"""A new agent in a store, whole or not at all. Persistence thread only."""

from __future__ import annotations

from collections.abc import Iterable

from kvactors.persistence.commit.save import Save
from kvactors.persistence.errors import AgentExists
from kvactors.persistence.store.store import Store

__all__ = ["add_agent"]


def add_agent(store: Store, agent_id: str, saves: Iterable[Save]) -> None:
    """Commit to `store` the saves of `agent_id`, which is new, one by one; if one fails, none
    stays.

    A crash in between leaves an agent that is whole but cold. Raises AgentExists,
    LedgerUnreadable, whatever a save fails with, and what `saves` raises itself.
    """
    if store.read_ledger(agent_id) is not None or store.fingerprints(agent_id):
        raise AgentExists(agent_id)
    try:
        for save in saves:
            _commit(store, save)
    except BaseException:
        store.forget(agent_id)
        raise


def _commit(store: Store, save: Save) -> None:
    errors: list[BaseException] = []
    store.commit(
        [save],
        durable=lambda _: None,
        cached=lambda _: None,
        failed=lambda _save, _part, error: errors.append(error),
    )
    if errors:
        raise errors[0]
