"""A simulated disk: what was written and not synced may be there after a crash, or not."""

import errno
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.testing.machines.process import Process

__all__ = ["Disk", "SimJournal"]

SYNC = (0.001, 0.008)


class Disk:
    """Outlives its processes. `step` is told of each write, before and after."""

    def __init__(self, rng: Random, step: Callable[[Process, str], None]) -> None:
        self._rng, self.step = rng, step
        self.files: dict[str, Any] = {}
        self.slow, self.full, self.failing = 1.0, False, 0.0

    def heal(self) -> None:
        """No faults any more."""
        self.slow, self.full, self.failing = 1.0, False, 0.0

    async def write(self, process: Process, what: str, apply: Callable[[], object]) -> None:
        """Durably do what `apply` does, for `process`; `what` names the step. Raises OSError: then
        it was done or not."""
        self.step(process, f"before {what}")
        key = object()
        process.at_death(key, lambda: self._rng.random() < 0.5 and apply())
        if self.full:
            process.no_more(key)
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")
        await process.wait(self._rng.uniform(*SYNC) * self.slow)
        process.no_more(key)
        if self._rng.random() < self.failing:
            if self._rng.random() < 0.5:
                apply()
            raise OSError(errno.EIO, "the simulated disk failed")
        apply()
        self.step(process, f"after {what}")

    async def read(self, process: Process, what: str) -> None:
        """It takes its time."""
        self.step(process, f"before {what}")
        await process.wait(self._rng.uniform(0.0002, 0.001))


class SimJournal:
    """A Journal of a `process` on such a `disk`, in a `file` of it."""

    def __init__(self, process: Process, disk: Disk, file: str = "journal") -> None:
        self._process, self._disk, self._file = process, disk, file

    def load(self) -> list[Record]:
        """All that is there."""
        return list(self._disk.files.get(self._file, ()))

    async def append(self, record: Record) -> None:
        """One more."""
        records = self._disk.files.setdefault(self._file, [])
        await self._disk.write(self._process, "journal", lambda: records.append(record))

    async def replace(self, records: Iterable[Record]) -> None:
        """These instead of those that are there now."""
        held = self._disk.files.setdefault(self._file, [])
        new, old = list(records), len(held)
        await self._disk.write(self._process, "journal", lambda: held.__setitem__(slice(old), new))
