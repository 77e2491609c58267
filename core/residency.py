"""Hot caches: the KV of idle agents in memory, as immutable pieces. GPU thread only.

An agent's pieces are block-aligned and end in a tail. When a turn ends, only its new tokens
leave the arena; the old tail is replaced because its block has grown. What must be written
is planned so that a closed block supersedes its partial segments: no token is written more
than twice (design, Persistence).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import mlx.core as mx

from kvactors.core.arena import Arena, Piece
from kvactors.core.blocks import BLOCK_TOKENS

__all__ = ["HotCache", "HotCaches", "ranges_to_save"]


def _block_floor(tokens: int) -> int:
    return tokens // BLOCK_TOKENS * BLOCK_TOKENS


def ranges_to_save(saved: int, end: int) -> list[tuple[int, int]]:
    """Half-open token ranges to write when [0, saved) is on disk and [0, end) is cached.

    Within a block the new tokens only; when a block closes, its beginning again:
    (100, 120) -> [(100, 120)];  (100, 300) -> [(0, 256), (256, 300)].
    """
    if end <= saved:
        return []
    closed = _block_floor(end)
    if _block_floor(saved) >= closed:
        return [(saved, end)]
    ranges = [(_block_floor(saved), closed)]
    return [*ranges, (closed, end)] if end > closed else ranges


@dataclass(slots=True)
class HotCache:
    """`pieces` cover [0, end); [0, saved) was handed to the store, [0, clean) is on disk.

    `identity` is the hash of the token ids [0, end) that the KV was computed from.
    """

    pieces: list[Piece] = field(default_factory=list)
    end: int = 0
    saved: int = 0
    clean: int = 0
    identity: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def dirty(self) -> bool:
        """Whether some of it is not on disk yet."""
        return self.clean < self.end

    def take(self, arena: Arena, row: int, end: int) -> None:
        """Cover [0, end) with what an arena's row now holds."""
        if end <= self.end:
            return
        start, closed = _block_floor(self.end), _block_floor(end)
        self.pieces = [piece for piece in self.pieces if piece.end <= start]
        if closed > start:
            self.pieces.append(arena.export(row, start, closed))
        if end > closed:
            self.pieces.append(arena.export(row, closed, end))
        self.end = end

    def slices(self, ranges: Iterable[tuple[int, int]]) -> list[Piece]:
        """Pieces of exactly these ranges."""
        return [self._slice(start, end) for start, end in ranges]

    def _slice(self, start: int, end: int) -> Piece:
        parts = [
            _cut(piece, max(start, piece.start), min(end, piece.end))
            for piece in self.pieces
            if piece.start < end and start < piece.end
        ]
        if len(parts) == 1:
            return parts[0]
        groups = tuple(
            {
                name: mx.concatenate([part.groups[g][name] for part in parts], axis=3)
                for name in group
            }
            for g, group in enumerate(parts[0].groups)
        )
        mx.eval(groups)
        return Piece(start, end, groups)


class HotCaches:
    """Hot caches by agent, least recently used first."""

    def __init__(self) -> None:
        self._caches: dict[str, HotCache] = {}

    def __len__(self) -> int:
        return len(self._caches)

    def __contains__(self, agent_id: str) -> bool:
        return agent_id in self._caches

    @property
    def nbytes(self) -> int:
        """Bytes of all hot caches."""
        return sum(cache.nbytes for cache in self._caches.values())

    def get(self, agent_id: str) -> HotCache | None:
        """The agent's hot cache, if it has one."""
        return self._caches.get(agent_id)

    def touch(self, agent_id: str) -> HotCache:
        """The agent's cache, made if missing, now the most recently used."""
        cache = self._caches.pop(agent_id, None) or HotCache()
        self._caches[agent_id] = cache
        return cache

    def drop(self, agent_id: str) -> None:
        """Forget an agent's cache; its memory is freed."""
        self._caches.pop(agent_id, None)

    def victims(self, keep: Iterable[str]) -> list[str]:
        """Agents that may be evicted, best first: clean before dirty, then the longest idle."""
        kept = set(keep)
        idle = [(cache.dirty, agent) for agent, cache in self._caches.items() if agent not in kept]
        return [agent for _, agent in sorted(idle, key=lambda pair: pair[0])]


def _cut(piece: Piece, start: int, end: int) -> Piece:
    if (start, end) == (piece.start, piece.end):
        return piece
    window = slice(start - piece.start, end - piece.start)
    groups = tuple(
        {name: mx.contiguous(array[:, :, :, window]) for name, array in group.items()}
        for group in piece.groups
    )
    mx.eval(groups)
    return Piece(start, end, groups)
