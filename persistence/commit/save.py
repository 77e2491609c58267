"""What a commit is asked to store. Pure: any thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvactors.core.cache.segment import Segment

__all__ = ["Save"]


@dataclass(frozen=True, slots=True)
class Save:
    """What one agent adds to the store. Immutable."""

    agent_id: str
    records: tuple[dict[str, Any], ...]
    """Ledger records to append, in order; msgpack must be able to pack them. May be empty."""
    fingerprint: str | None
    """Which model's KV the segments are; None: no KV part."""
    segments: tuple[Segment, ...]
    """Contiguous and ascending. They replace every stored segment with a start at or
    after the first one's; what is stored before must cover exactly [0, that start)."""
