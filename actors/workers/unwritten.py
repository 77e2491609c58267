"""What the disk refused: ledger records that wait in memory and are written again.

With the agent's next save, or by themselves when the disk is back. On the persistence actor's
thread.
"""

import logging
from collections.abc import Callable
from typing import Any

from kvactors.actors.errors import SaveFailed
from kvactors.persistence.commit.save import Save
from kvactors.persistence.store.store import Store

__all__ = ["Records", "Unwritten"]

logger = logging.getLogger(__name__)

# Seconds until the disk is tried again; twice as long each time.
FIRST_PAUSE = 0.25
LONGEST_PAUSE = 30.0

Records = tuple[dict[str, Any], ...]


class Unwritten:
    """Records by agent. `hold_back` is told how many bytes wait, `accepted` when none do any more;
    `again` is asked to have `retry` called in so many seconds."""

    def __init__(
        self,
        hold_back: Callable[[int], object],
        accepted: Callable[[], object],
        again: Callable[[float], object],
    ) -> None:
        self._hold_back = hold_back
        self._accepted = accepted
        self._again = again
        self._records: dict[str, Records] = {}
        self._nbytes = 0
        self._pause = 0.0

    def __bool__(self) -> bool:
        return bool(self._records)

    def take(self, agent_id: str) -> Records:
        """An agent's records, to be written with others or not at all."""
        records = self._records.pop(agent_id, ())
        self._nbytes -= _size(records)
        return records

    def drop(self, agent_id: str) -> None:
        """An agent is forgotten: nothing of it is to be written any more."""
        if self.take(agent_id):
            self.tell()
            self._all_written()

    def keep(self, save: Save) -> None:
        """The disk has refused what this save has of its agent."""
        self.take(save.agent_id)
        self._records[save.agent_id] = save.records
        self._nbytes += _size(save.records)
        self.tell()

    def tell(self) -> None:
        """Say how much waits."""
        self._hold_back(self._nbytes)

    def write(self, store: Store) -> None:
        """Write what the disk takes now."""
        try:
            store.commit(
                [Save(agent, records, None, ()) for agent, records in self._records.items()],
                durable=self._written,
                cached=lambda save: None,
                failed=lambda save, _stage, error: _log_refused(save.agent_id, error),
            )
        except Exception as error:
            for agent in self._records:
                _log_refused(agent, error)
        self._all_written()

    def _all_written(self) -> None:
        if not self._records:
            self._accepted()

    def settle(self, agent_id: str, opened: Callable[[], Store]) -> None:
        """Write what waits of an agent. Raises SaveFailed if the disk still refuses it."""
        if agent_id in self._records:
            self.write(opened())
            self.tell()
        if agent_id in self._records:
            raise SaveFailed(f"the disk has refused turns of {agent_id!r}")

    def _written(self, save: Save) -> None:
        self.take(save.agent_id)

    def group_ended(self) -> None:
        """After a group of saves: what it left is tried again, soon at first."""
        self.tell()
        if not self._records:
            self._pause = 0.0
        elif not self._pause:
            self._pause = FIRST_PAUSE
            self._again(self._pause)

    def retry(self, opened: Callable[[], Store]) -> None:
        """Try the disk again, if something waits, and later once more if it is not back."""
        if not self._records:
            self._pause = 0.0
            return
        try:
            self.write(opened())
        except Exception as error:
            logger.error("the disk is still not there: %s", error)
        self.tell()
        if self._records:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._again(self._pause)
        else:
            self._pause = 0.0
            logger.warning("the disk writes again: nothing of what was said is missing")


def _log_refused(agent_id: str, error: BaseException) -> None:
    logger.error("turns of %r were not written: %s", agent_id, error)


def _size(records: Records) -> int:
    """Bytes of ledger records, about."""
    turns = [turn for record in records for turn in record["turns"]]
    return sum(len(turn["tokens"]) + len(turn["text"]) for turn in turns)
