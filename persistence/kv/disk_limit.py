"""The limit of what `kv/` may take: who leaves when more is to be written.

Persistence thread only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass

from kvactors.persistence.errors import MaxDiskExceeded
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.kv.folders import KvFolders

__all__ = ["DiskLimit", "Eviction"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Eviction:
    """Who must, and who should, not be evicted by a commit."""

    keep: Set[Key]
    """Never: what this commit writes."""
    last: Callable[[], Iterable[str]] = tuple
    """Ids of agents that leave after all others, as those that are busy do."""


class DiskLimit:
    """At most `max_disk` bytes of KV; None: no limit. Persistence thread only."""

    def __init__(self, kv: KvFolders, max_disk: int | None) -> None:
        self._kv = kv
        self._max_disk = max_disk
        self.evicted: Callable[[str, str], object] = _nobody
        """Called with agent id and fingerprint, before KV is deleted, whatever makes room."""
        self.busy: Callable[[], Iterable[str]] = tuple
        """Ids of the agents in use: their KV leaves after all others'."""

    def make_room(self, key: Key, change: int, eviction: Eviction) -> None:
        """Evict, as `eviction` says, until `key` may take `change` more bytes; counts them as its
        own.

        Raises MaxDiskExceeded if it cannot succeed, before evicting anything if that can be known.
        What cannot be deleted stays, and others leave in its place.
        """
        if self._max_disk is None:
            return
        self._evict_all(change, self._max_disk, eviction)
        self._kv.disk.reserve(key, change)

    def hold(self) -> None:
        """Evict what is too much, whosever it is, as where the limit was a higher one before. What
        cannot leave stays."""
        if self._max_disk is not None:
            with suppress(MaxDiskExceeded):
                self._evict_all(0, self._max_disk, Eviction(frozenset()))

    def _evict_all(self, change: int, limit: int, eviction: Eviction) -> None:
        stuck = set[Key]()
        while not self._evict(change, limit, eviction, stuck):
            pass

    def _evict(self, change: int, limit: int, eviction: Eviction, stuck: set[Key]) -> bool:
        """Whether all could be deleted that had to be; what could not is `stuck` from then on."""
        for other, name in self._victims(change, limit, eviction, stuck):
            _log.warning(
                "max_disk of %d bytes is reached: the KV of %r under model %s is evicted; "
                "its next turn prefills again",
                limit,
                name,
                other.fingerprint[:8],
            )
            self.evicted(name, other.fingerprint)
            try:
                self._kv.drop(other)
            except OSError as error:
                _log.warning("the KV of %r cannot be deleted: %s", name, error)
                stuck.add(other)
                return False
        return True

    def _victims(
        self, change: int, limit: int, eviction: Eviction, stuck: set[Key]
    ) -> list[tuple[Key, str]]:
        """Keys to evict and their agents' ids. What a newer version wrote is never one."""
        newer = self._kv.newer
        while True:
            known = len(newer)
            keep = {*eviction.keep, *newer, *stuck}
            keys = self._kv.disk.victims(change, limit, keep, lambda: self._last(eviction))
            found = [(key, self._name(key)) for key in keys]
            if len(newer) == known:
                return found

    def _name(self, key: Key) -> str:
        """Whose KV it is; its folder's name where no manifest tells."""
        with suppress(OSError):
            manifest = self._kv.usable(key)
            if manifest is not None:
                return manifest.agent_id
        return key.agent

    def _last(self, eviction: Eviction) -> set[str]:
        """Encoded ids of those that leave after all others."""
        return {encode_agent_id(agent_id) for agent_id in (*self.busy(), *eviction.last())}

    def has_room(self, size: int) -> bool:
        """Whether `size` more bytes fit without an eviction."""
        return self._max_disk is None or self._kv.disk.size + size <= self._max_disk


def _nobody(agent_id: str, fingerprint: str) -> None:
    """Nobody has to know of an eviction."""
