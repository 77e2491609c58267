"""One group commit: all ledgers, then all KV, each step for all saves before the next.

Persistence thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvactors.persistence.commit.save import Save
from kvactors.persistence.commit.steps import GroupSyncs, run_steps
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.kv.disk_limit import Eviction
from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.kv.part import Claims, KvPart
from kvactors.persistence.ledger.part import LedgerPart
from kvactors.persistence.store.parts import StoreParts

__all__ = ["Done", "Failed", "Reports", "commit_group", "commit_one"]

_log = logging.getLogger(__name__)

Done = Callable[[Save], None]
Failed = Callable[[Save, str, BaseException], None]


@dataclass(frozen=True, slots=True)
class Reports:
    """What `Store.commit` was given to call."""

    durable: Done
    cached: Done
    failed: Failed
    pace: Callable[[], object] = bool
    last: Callable[[], Iterable[str]] = tuple


def commit_group(store: StoreParts, saves: Sequence[Save], reports: Reports) -> None:
    """Commit saves of different agents to `store`; `reports` are told. See `Store.commit`."""
    written = _commit_ledgers(store, saves, reports)
    with_kv = [part for part in written if part.save.fingerprint is not None]
    for part in with_kv:
        if not part.save.segments:
            reports.cached(part.save)
    _commit_kv(store, [part for part in with_kv if part.save.segments], reports)


def commit_one(store: StoreParts, save: Save, last: Callable[[], Iterable[str]] = tuple) -> None:
    """Commit one `save` to `store`, durable on return; the KV of the agents that `last` gives
    leaves after all others'. Raises what it fails with."""
    errors: list[BaseException] = []

    def failed(_save: Save, _part: str, error: BaseException) -> None:
        errors.append(error)

    commit_group(store, [save], Reports(_done, _done, failed, last=last))
    if errors:
        raise errors[0]


def _done(_save: Save) -> None:
    """Nobody waits for one of its phases."""


def _commit_ledgers(store: StoreParts, saves: Sequence[Save], reports: Reports) -> list[LedgerPart]:
    syncs = GroupSyncs(store.ledgers.files)
    parts = [
        LedgerPart(save, ledgers=store.ledgers, syncs=syncs, counter=store.counter)
        for save in saves
    ]
    parts = run_steps(
        parts,
        LedgerPart.STEPS,
        syncs,
        lambda part, error: reports.failed(part.save, "ledger", error),
    )
    for part in parts:
        reports.durable(part.save)
    return parts


def _commit_kv(store: StoreParts, written: Sequence[LedgerPart], reports: Reports) -> None:
    syncs, claims = GroupSyncs(store.kv.files), Claims()
    keep = {
        Key(encode_agent_id(part.save.agent_id), part.save.fingerprint or "") for part in written
    }
    eviction = Eviction(keep, reports.last)
    parts = [
        KvPart(
            part.save,
            kv=store.kv,
            limit=store.limit,
            ledger=part.after,
            eviction=eviction,
            claims=claims,
            syncs=syncs,
            counter=store.counter,
            pace=reports.pace,
        )
        for part in written
    ]
    parts = run_steps(
        parts, KvPart.STEPS, syncs, lambda part, error: reports.failed(part.save, "kv", error)
    )
    for part in parts:
        try:
            part.finish()
        except OSError as error:
            _log.warning("could not delete what was replaced: %s", error)
        reports.cached(part.save)
