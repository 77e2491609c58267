"""All ledgers of a store. Persistence thread only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from os.path import lexists
from pathlib import Path
from typing import Any

from kvactors.persistence.errors import LedgerUnreadable, NewerFormat
from kvactors.persistence.files.atomic import Files, replace_file, temp_path
from kvactors.persistence.files.encryption import Sealing
from kvactors.persistence.files.naming import LEDGER_NAME, encode_agent_id
from kvactors.persistence.files.reading import NotAFile, is_empty, read_file
from kvactors.persistence.ledger.frames import (
    Mark,
    Scan,
    encode_header,
    encode_records,
    payload_checksum,
    read_agent_id,
    read_key_id,
    scan,
)
from kvactors.persistence.ledger.records import decode_records, decode_tail

__all__ = ["LedgerState", "Ledgers"]

# More than frame 0 of any ledger takes.
_FIRST = 1 << 20

# What macOS puts into each folder that somebody looks at.
_FINDER = ".DS_Store"


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Where a ledger's next frame goes. Zeros: there is no ledger yet."""

    length: int = 0  # bytes
    frames: int = 0
    checksum: int = 0  # of the last frame's payload
    records: int = 0


class Ledgers:
    """The folder `agents/`, at `root`, written through `files`. Persistence thread only.

    `marks` gives what manifests say of an agent's ledger; `sealing`: None without encryption.
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        marks: Callable[[str], list[Mark]],
        sealing: Sealing | None,
    ) -> None:
        self.files = files
        self.root = root
        self.sealing = sealing
        self._marks = marks
        self._states: dict[str, LedgerState] = {}
        # The ends that records were read to.
        self._read_to: dict[str, LedgerState] = {}
        # Those whose names this process has made durable.
        self._named: set[str] = set()

    def path(self, encoded: str) -> Path:
        """The ledger file of an encoded id."""
        return self.root / encoded / LEDGER_NAME

    def has(self, encoded: str) -> bool:
        """Whether anything stands where a ledger does, a link to nowhere too."""
        return lexists(self.path(encoded))

    @cached_property
    def names(self) -> set[str]:
        """Encoded ids of the agents that have a ledger; listed when it is first asked for."""
        return {path.parent.name for path in self.root.glob(f"*/{LEDGER_NAME}")}

    def load(self, encoded: str) -> Scan | None:
        """Read and check one ledger; None if it never was. Raises LedgerUnreadable, NewerFormat,
        OSError.

        What lies behind what this process found or made durable is a failed append that could
        not be taken back: it is not read, and the next append cuts it.
        """
        known = self._states.get(encoded)
        if known is not None and not known.frames:
            return None
        path = self.path(encoded)
        marks = self._marks(encoded)
        try:
            data = self._read(path)
        except FileNotFoundError:
            for mark in marks:
                if mark.length:
                    reason = f"it is missing, and {mark.manifest} saw {mark.length} bytes"
                    raise LedgerUnreadable(path, reason) from None
            return None
        return scan(data[: known.length] if known else data, path, marks, self.sealing)

    def _read(self, path: Path, limit: int = -1, start: int = 0) -> bytes:
        if path.parent.is_symlink():
            raise LedgerUnreadable(path, "its folder is a symbolic link")
        try:
            return read_file(path, limit, start=start)
        except NotAFile as error:
            raise LedgerUnreadable(path, str(error)) from error

    def load_of(self, agent_id: str) -> Scan | None:
        """`load`, and the ledger must be this agent's own."""
        encoded = encode_agent_id(agent_id)
        found = self.load(encoded)
        if found is not None and found.agent_id != agent_id:
            reason = f"it belongs to {found.agent_id!r}, not to {agent_id!r}"
            raise LedgerUnreadable(self.path(encoded), reason)
        return found

    def records(self, found: Scan, path: Path) -> tuple[dict[str, Any], ...]:
        """All records of a ledger. Raises LedgerUnreadable."""
        return decode_records(found, path, self.sealing)

    def records_from(self, agent_id: str, start: int) -> tuple[dict[str, Any], ...]:
        """The records of `agent_id` from the `start`-th on. Of a ledger that was read to there the
        frames since then are read alone. Raises LedgerUnreadable, NewerFormat, OSError."""
        encoded = encode_agent_id(agent_id)
        path, end = self.path(encoded), self.state(agent_id)
        read = self._read_to.get(encoded, LedgerState())
        if not end.frames:
            return ()
        if not read.frames or start < read.records:
            found = self.load_of(agent_id)
            records = () if found is None else self.records(found, path)
            tail = records[start:]
        else:
            data = self._read(path, end.length - read.length, read.length)
            tail = decode_tail(data, read.frames, path, self.sealing)[start - read.records :]
        self._read_to[encoded] = end
        return tail

    def key_ids(self) -> Iterator[bytes | None]:
        """Of each readable ledger, lazily: the key that sealed it, or None."""
        for folder in self.root.iterdir():
            path = folder / LEDGER_NAME
            with suppress(OSError, LedgerUnreadable, NewerFormat):
                yield read_key_id(self._read(path, _FIRST), path)

    def owner(self, encoded: str) -> str | None:
        """The id in a ledger's first frame, however the rest is; None if it does not tell."""
        path = self.path(encoded)
        try:
            return read_agent_id(self._read(path, _FIRST), path, self.sealing)
        except (OSError, LedgerUnreadable, NewerFormat):
            return None

    def is_named(self, agent_id: str) -> bool:
        """Has this process written the ledger, and made its name durable?"""
        return encode_agent_id(agent_id) in self._named

    def state(self, agent_id: str) -> LedgerState:
        """Where to append; checks the file the first time, before anything is appended that might
        stay there unwanted. Raises LedgerUnreadable, OSError."""
        encoded = encode_agent_id(agent_id)
        if encoded not in self._states:
            found = self.load_of(agent_id)
            self._states[encoded] = LedgerState() if found is None else _state_of(found)
        return self._states[encoded]

    def remember(self, agent_id: str, state: LedgerState) -> None:
        """Note what a commit made durable."""
        encoded = encode_agent_id(agent_id)
        self._states[encoded] = state
        self._named.add(encoded)
        if "names" in self.__dict__:
            self.names.add(encoded)

    def rewrite(self, agent_id: str, records: Sequence[dict[str, Any]]) -> int:
        """Let the ledger of `agent_id` be of these `records` alone, durably; its bytes. Raises
        OSError; then it is that or as it was."""
        encoded = encode_agent_id(agent_id)
        frame = encode_records(records, 1, agent_id, self.sealing)
        data = encode_header(agent_id, self.sealing) + frame
        self._states.pop(encoded, None)
        self._read_to.pop(encoded, None)
        replace_file(self.files, self.path(encoded), data)
        self.remember(agent_id, LedgerState(len(data), 2, payload_checksum(frame), len(records)))
        return len(data)

    def remove(self, agent_id: str) -> None:
        """Delete the ledger, durably. Raises OSError; then the ledger stands or is gone."""
        encoded = encode_agent_id(agent_id)
        folder = self.root / encoded
        self._states.pop(encoded, None)
        self._read_to.pop(encoded, None)
        self._named.discard(encoded)
        if folder.is_symlink():
            self.files.unlink(folder)
        if not folder.is_dir():
            return
        for path in (self.path(encoded), temp_path(self.path(encoded)), folder / _FINDER):
            if lexists(path):
                self.files.unlink(path)
        if "names" in self.__dict__:
            self.names.discard(encoded)
        self.files.sync_dir(folder)
        if is_empty(folder):
            self.files.rmdir(folder)
            self.files.sync_dir(self.root)


def _state_of(found: Scan) -> LedgerState:
    frames = found.frames
    return LedgerState(found.length, len(frames), frames[-1].checksum, found.records)
