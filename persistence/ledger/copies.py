"""A copy of one ledger record, as it goes from store to store: its msgpack, sealed where stores are
encrypted. Pure: any thread."""

from __future__ import annotations

from typing import Any

from kvactors.persistence.files.encryption import Sealing
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.files.packing import pack, unpack

__all__ = ["make_copy", "open_copy"]

VERSION = 1


def make_copy(sealing: Sealing | None, agent_id: str, place: int, record: dict[str, Any]) -> bytes:
    """The `place`-th record of `agent_id`: the same bytes wherever `sealing` has the same key."""
    plain = pack(record)
    return plain if sealing is None else sealing.seal_same(_context(agent_id, place), plain)


def open_copy(sealing: Sealing | None, agent_id: str, place: int, copy: bytes) -> dict[str, Any]:
    """The record in a `copy`, which `sealing` opens as the `place`-th of `agent_id`. Raises
    BrokenSeal, ValueError for what is no record."""
    if sealing is not None:
        copy = sealing.open_bytes(_context(agent_id, place), copy)
    record = unpack(copy)
    if not isinstance(record, dict):
        raise ValueError("it is no record; is it sealed, and this store is not encrypted?")
    return record


def _context(agent_id: str, place: int) -> bytes:
    """What a sealed copy is bound to."""
    return f"record copy {VERSION} {encode_agent_id(agent_id)} {place}".encode()
