"""The limit of what `kv/` may take: who leaves when more is to be written.

Persistence thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from dataclasses import dataclass

from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.kv.folders import KvFolders

__all__ = ["DiskLimit", "Eviction"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Eviction:
    """Who must, and who should, not be evicted by a commit; and who is told."""

    keep: Set[Key]
    """Never: what this commit writes."""
    last: Callable[[], Set[str]]
    """Encoded ids of agents in use: only after all others."""
    evicted: Callable[[str, str], None]
    """Called with agent id and fingerprint, before the KV is deleted."""


class DiskLimit:
    """At most `max_disk` bytes of KV; None: no limit. Persistence thread only."""

    def __init__(self, kv: KvFolders, max_disk: int | None) -> None:
        self._kv = kv
        self._max_disk = max_disk

    def make_room(self, key: Key, change: int, eviction: Eviction) -> None:
        """Evict until `key` may take `change` more bytes; counts them as taken.

        Raises MaxDiskExceeded before evicting anything if it cannot succeed; OSError if
        an eviction fails.
        """
        if self._max_disk is None:
            return
        for other, name in self._victims(change, self._max_disk, eviction):
            _log.warning(
                "max_disk of %d bytes is reached: the KV of %r under model %s is evicted; "
                "its next turn prefills again",
                self._max_disk,
                name,
                other.fingerprint[:8],
            )
            eviction.evicted(name, other.fingerprint)
            self._kv.drop(other)
        self._kv.disk.reserve(key, change)

    def _victims(self, change: int, limit: int, eviction: Eviction) -> list[tuple[Key, str]]:
        """Keys to evict and their agents' ids. What a newer version wrote is never one."""
        newer = self._kv.newer
        while True:
            known = len(newer)
            found = []
            keep = {*eviction.keep, *newer}
            for key in self._kv.disk.victims(change, limit, keep, eviction.last):
                manifest = self._kv.usable(key)
                found.append((key, manifest.agent_id if manifest else key.agent))
            if len(newer) == known:
                return found

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes fit without an eviction."""
        return self._max_disk is None or self._kv.disk.size + size <= self._max_disk
