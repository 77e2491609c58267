"""Group commit: many saves take each step together, and a save that fails takes none back
but its own. Persistence thread only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from traceback import format_exception
from typing import TypeVar

from kvactors.persistence.commit.save import Save
from kvactors.persistence.errors import StorageError, untraced
from kvactors.persistence.files.atomic import Files

__all__ = ["CommitPart", "GroupSyncs", "WriteCounter", "rounds", "run_steps"]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class WriteCounter:
    """Bytes handed to the disk, for measuring write amplification."""

    written: int = 0


class GroupSyncs:
    """Syncs files and directories for a whole group: each goes to the drive once in a step, and
    one flush at the step's end puts all of them on the medium. Made anew for each group."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._handed: dict[Path, None] = {}

    def sync(self, path: Path) -> None:
        """Put it on the medium by the end of this step; raises OSError."""
        if path not in self._handed:
            self._files.fsync(path)
            self._handed[path] = None

    def flush(self) -> None:
        """End a step: what was synced in it is on the medium. Raises OSError."""
        handed, self._handed = self._handed, {}
        for path in reversed(handed):
            # A save that failed in this step has taken its files away again.
            with suppress(FileNotFoundError):
                self._files.flush(path)
                return


@dataclass(slots=True)
class CommitPart:
    """One save's part of a phase. Steps push what takes them back before they act."""

    save: Save
    undo_actions: list[Callable[[], object]] = field(default_factory=list)

    def undo(self) -> None:
        """Take back the steps done, last first. Never raises: open sweeps what is left."""
        while self.undo_actions:
            action = self.undo_actions.pop()
            try:
                action()
            except FileNotFoundError:
                pass
            except OSError as error:
                _log.debug("could not take back a step of %r: %s", self.save.agent_id, error)


_P = TypeVar("_P", bound=CommitPart)


def run_steps(
    parts: Sequence[_P],
    steps: Sequence[Callable[[_P], None]],
    syncs: GroupSyncs,
    failed: Callable[[_P, Exception], None],
) -> list[_P]:
    """Run each of `steps` over all `parts` before the next one; gives the parts that passed all.

    What a step has synced through `syncs` is on the medium before the next one. A part that raises
    is undone and reported to `failed`, and takes no further step; where the flush of a step raises,
    that is so of all that passed it. Of none is anything held when this is over but by who called:
    a save's tensors are views of KV in memory.
    """
    alive = list(parts)
    for step in steps:
        passed = []
        for part in alive:
            try:
                step(part)
            except Exception as error:
                _fail(part, error, failed)
            else:
                passed.append(part)
        try:
            syncs.flush()
        except OSError as error:
            # Last first, as a part takes back its steps: the first made the folders they share.
            for part in reversed(passed):
                _fail(part, error, failed)
            passed = []
        alive = passed
    for part in alive:
        part.undo_actions.clear()
    return alive


def _fail(part: _P, error: Exception, failed: Callable[[_P, Exception], None]) -> None:
    part.undo()
    if not isinstance(error, (OSError, StorageError)):
        text = "".join(format_exception(error))
        _log.error("a defect while saving %r: %s", part.save.agent_id, text)
    failed(part, untraced(error))


def rounds(saves: Sequence[Save]) -> list[list[Save]]:
    """Split saves so that each agent is at most once in a round, in its order.

    One unsynced append per ledger is what lets a torn frame be told from a damaged one.
    """
    found: list[list[Save]] = []
    turn: dict[str, int] = {}
    for save in saves:
        number = turn.get(save.agent_id, 0)
        turn[save.agent_id] = number + 1
        if number == len(found):
            found.append([])
        found[number].append(save)
    return found
