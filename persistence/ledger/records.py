"""The records in a ledger's frames. Pure: any thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvactors.persistence.errors import LedgerUnreadable
from kvactors.persistence.files.encryption import Sealing
from kvactors.persistence.files.packing import unpack
from kvactors.persistence.ledger.frames import Frame, Scan, payload_of, read_frame

__all__ = ["Record", "decode_records", "decode_tail"]

Record = dict[str, Any]


def decode_records(found: Scan, path: Path, sealing: Sealing | None = None) -> tuple[Record, ...]:
    """All records that were `found`, in order, opened by `sealing`; tuples come back as lists.
    Raises LedgerUnreadable, naming `path`."""
    return _decoded(found.frames[1:], 1, path, sealing)


def decode_tail(
    data: bytes, first: int, path: Path, sealing: Sealing | None = None
) -> tuple[Record, ...]:
    """All records of `data`, the whole frames of the ledger at `path` from number `first` on,
    opened by `sealing`. Raises LedgerUnreadable, NewerFormat."""
    frames: list[Frame] = []
    offset = 0
    while offset < len(data):
        number = first + len(frames)
        frame = read_frame(data, offset, number, path)
        if isinstance(frame, str):
            raise LedgerUnreadable(path, f"frame {number}: {frame}")
        frames.append(frame)
        offset = frame.end
    return _decoded(frames, first, path, sealing)


def _decoded(
    frames: Sequence[Frame], first: int, path: Path, sealing: Sealing | None
) -> tuple[Record, ...]:
    records: list[Record] = []
    for number, frame in enumerate(frames, start=first):
        try:
            batch = unpack(payload_of(frame, number, path, sealing))
        except ValueError as error:
            raise LedgerUnreadable(path, f"frame {number}: {error}") from error
        if not isinstance(batch, list) or not all(isinstance(item, dict) for item in batch):
            raise LedgerUnreadable(path, f"frame {number} is no list of records")
        records.extend(batch)
    return tuple(records)
