"""Hot caches: the KV of idle agents in memory, as immutable pieces. GPU thread only.

An agent's pieces are block-aligned and end in a tail. When a turn ends, only its new tokens
leave the arena; the old tail is replaced because its block has grown. A piece is never
changed, so agents with a common beginning hold the same ones. What must be written is
planned so that a closed block supersedes its partial segments: no token is written more
than twice [design, Persistence]. With windows or states, pieces end where turns did, each
with a checkpoint there, and old ones lose it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.pieces import (
    LONGEST_PIECE,
    HeldPieces,
    Piece,
    common_end,
    cut_piece,
    join_pieces,
    thin_out,
)
from kvactors.core.cache.blocks import BLOCK_TOKENS, BlockPool, block_floor
from kvactors.core.cache.spec import ModelCacheSpec
from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.schedule.eviction import IdleAgent

__all__ = ["HotCache", "HotCaches", "ranges_to_save"]


def ranges_to_save(saved: int, end: int, shared: int = 0) -> list[tuple[int, int]]:
    """Half-open token ranges to write when [0, saved) is on disk and [0, end) is cached.

    Within a block the new tokens only; when a block closes, its beginning again:
    (100, 120) -> [(100, 120)];  (100, 300) -> [(0, 256), (256, 300)]. Ranges end at multiples
    of 1,024 tokens, and where a shared beginning ends.
    """
    if end <= saved:
        return []
    closed = block_floor(end)
    if block_floor(saved) >= closed:
        return [(saved, end)]
    ranges = _split(block_floor(saved), closed, shared)
    return [*ranges, (closed, end)] if end > closed else ranges


def _split(start: int, end: int, shared: int) -> list[tuple[int, int]]:
    """[start, end) in parts that end at multiples of LONGEST_PIECE and at `shared`."""
    borders = {start, end, *range(start - start % LONGEST_PIECE, end, LONGEST_PIECE), shared}
    inside = sorted(border for border in borders if start <= border <= end)
    return list(pairwise(inside))


@dataclass(slots=True, eq=False)
class HotCache:
    """`pieces` hold the KV of `tokens`, from the first on, all in one form.

    `saved_ends` are the ends of the ranges that the store has or was given, ascending; `unwritten`
    counts the bytes of those still on their way. The first `shared` tokens (`aligned`) are a
    beginning that other agents have too. It is `borrowed` until a turn of the agent's own has ended
    with it. What is `lent` is of nobody.
    """

    spec: ModelCacheSpec
    pieces: list[Piece] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    saved_ends: list[int] = field(default_factory=list)
    unwritten: int = 0
    shared: int = 0
    borrowed: bool = False
    lent: bool = False
    last_used: float = 0.0

    @property
    def end(self) -> int:
        """Tokens cached."""
        return len(self.tokens)

    @property
    def saved(self) -> int:
        """Tokens that were given to the store."""
        return self.saved_ends[-1] if self.saved_ends else 0

    def mark_saved(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note ranges given to the store: they replace what it has from their start on."""
        if ranges:
            self.limit_saved(ranges[0][0])
            self.saved_ends += [end for _, end in ranges]

    def limit_saved(self, tokens: int) -> None:
        """The store has ranges up to `tokens` only."""
        self.saved_ends = [end for end in self.saved_ends if end <= tokens]

    def ranges_to_save(self) -> list[tuple[int, int]]:
        """What must be written; pieces with checkpoints are segments as they are."""
        if not self.spec.checkpointed:
            return ranges_to_save(self.saved, self.end, self.shared)
        return [(piece.start, piece.end) for piece in self.pieces if piece.end > self.saved]

    def slices(self, ranges: Iterable[tuple[int, int]]) -> list[Piece]:
        """Pieces of exactly these ranges."""
        return [join_pieces(self.pieces, start, end) for start, end in ranges]

    def in_form(self, spec: ModelCacheSpec) -> bool:
        """Whether a row of this spec can begin with it."""
        return all(piece.spec is spec for piece in self.pieces[:1])

    def aligned(self, tokens: int) -> int:
        """Where a beginning of so many tokens can end that others share."""
        return tokens if self.spec.checkpointed else block_floor(tokens)

    def reusable(self, tokens: int) -> int:
        """How many of the first `tokens` tokens can be gone on from: up to a checkpoint."""
        if not self.spec.checkpointed:
            return min(tokens, self.end)
        ends = (piece.end for piece in self.pieces if piece.whole and piece.end <= tokens)
        return max(ends, default=0)


class HotCaches:
    """Hot caches by agent, least recently used first.

    `spec`: what is cached of a token. `blocks`: those of each agent, as many as its cache needs; a
    running turn may hold more. `has_room`: whether there is room for so many bytes more that could
    be done without. `held`: the pieces of all, each counted once.
    """

    def __init__(
        self, spec: ModelCacheSpec, blocks: BlockPool, has_room: Callable[[int], bool]
    ) -> None:
        self.blocks = blocks
        self._spec = spec
        self._has_room = has_room
        self._caches: dict[str, HotCache] = {}
        self.held = HeldPieces()

    def __len__(self) -> int:
        return len(self._caches)

    def __contains__(self, agent_id: str) -> bool:
        return agent_id in self._caches

    def __iter__(self) -> Iterator[str]:
        return iter(self._caches)

    def tokens(self, busy: Collection[str]) -> int:
        """Tokens that all agents but these have cached, shared ones counted for each."""
        return sum(cache.end for name, cache in self._caches.items() if name not in busy)

    def get(self, agent_id: str) -> HotCache | None:
        """The agent's hot cache, if it has one."""
        return self._caches.get(agent_id)

    def touch(self, agent_id: str, now: float | None = None) -> HotCache:
        """The agent's cache, made if missing, the most recently used from `now` on."""
        cache = self._caches.pop(agent_id, None) or HotCache(self._spec)
        cache.last_used = cache.last_used if now is None else now
        self._caches[agent_id] = cache
        return cache

    def drop(self, agent_id: str) -> None:
        """Forget an agent's cache; what nobody else holds of it is freed."""
        if (cache := self._caches.pop(agent_id, None)) is not None:
            self.held.release(cache.pieces)
        self.blocks.free(agent_id)

    def settle(self, agent_id: str) -> None:
        """After a turn: hold the blocks of what is cached, no more."""
        cache = self._caches.get(agent_id)
        if cache is not None and cache.end == 0:
            self.drop(agent_id)
        self.blocks.shrink(agent_id, cache.end if cache else 0)

    def adopt(self, agent_id: str, pieces: list[Piece], tokens: list[int]) -> HotCache:
        """Give `agent_id` these `pieces`, of these `tokens`, as its whole cache."""
        cache = self.touch(agent_id)
        self._replace(cache, pieces)
        cache.tokens = tokens
        return cache

    def keep_common(self, agent_id: str, tokens: Sequence[int], spec: ModelCacheSpec) -> int:
        """Cut the cache of `agent_id` to what it has in common with `tokens`, and a row of this
        `spec` can go on from; how much that is."""
        cache = self._caches.get(agent_id)
        if cache is None:
            return 0
        common = cache.reusable(common_prefix(cache.tokens, tokens)) if cache.in_form(spec) else 0
        if common < cache.end:
            self._replace(cache, self._first(cache.pieces, common))
            cache.tokens = cache.tokens[:common]
            cache.limit_saved(common)
            cache.shared = min(cache.shared, cache.aligned(common))
            self.blocks.shrink(agent_id, block_floor(common))
        return common

    def common(self, one: str, other: str) -> int:
        """How many of their first tokens two agents hold once: `one` and the `other`."""
        caches = self._caches.get(one), self._caches.get(other)
        return common_end(*(cache.pieces if cache else () for cache in caches))

    def share(self, donor: str, agent_id: str, tokens: Sequence[int]) -> HotCache:
        """Let `agent_id` begin with what the `donor` has of `tokens`. What is stored of its own
        stays so far as it holds the same."""
        source, same = self._caches[donor], self.common(donor, agent_id)
        common = source.reusable(common_prefix(source.tokens, tokens))
        cache = self.touch(agent_id)
        cache.borrowed = cache.borrowed or not cache.end
        self.adopt(agent_id, self._first(source.pieces, common), source.tokens[:common])
        cache.shared = min(source.shared, cache.aligned(common))
        cache.limit_saved(same)
        self.blocks.free(agent_id)
        self.blocks.share(donor, agent_id, cache.end)
        return cache

    def fork(self, parent: str, child: str, copies: Sequence[Piece] = ()) -> HotCache:
        """Let a new agent, `child`, have all that its `parent` has, or `copies` of that."""
        source = self._caches[parent]
        cache = self.adopt(child, list(copies or source.pieces), list(source.tokens))
        cache.saved_ends, cache.shared = list(source.saved_ends), source.shared
        cache.last_used = source.last_used
        if not copies:
            self.blocks.share(parent, child, cache.end)
        return cache

    def unite(self, agent_id: str) -> None:
        """Let an agent that begins with the pieces of another one hold their blocks with it."""
        mine, held = self._caches[agent_id].pieces, self.blocks.held(agent_id) * BLOCK_TOKENS
        if not self.held.common(mine[:1]):
            return
        for other, cache in self._caches.items():
            if other != agent_id and (common := common_end(mine, cache.pieces)):
                self.blocks.free(agent_id)
                self.blocks.share(other, agent_id, common)
                self.blocks.allocate(agent_id, held)
                return

    def take(self, agent_id: str, arena: Arena, row: int, tokens: Sequence[int]) -> None:
        """Cover `tokens` of `agent_id` with what a `row` of an `arena` now holds of them."""
        cache = self._caches[agent_id]
        end = len(tokens)
        if end <= cache.end:
            return
        if self._spec.checkpointed:
            new = [arena.export(row, *part) for part in _split(cache.end, end, cache.shared)]
            pieces = [*cache.pieces, *new]
        else:
            start, closed = block_floor(cache.end), block_floor(end)
            # Where a rewind cut a piece of several blocks, its closed ones stay.
            pieces = self._first(cache.pieces, start)
            ranges = _split(start, closed, cache.shared) if closed > start else []
            if end > closed:
                ranges.append((closed, end))
            pieces += [arena.export(row, first, last) for first, last in ranges]
        self._replace(cache, pieces)
        cache.tokens = list(tokens)
        if self._spec.checkpointed:
            fewer, same = thin_out(pieces, cache.shared, self._has_room)
            cache.limit_saved(same)
            self._replace(cache, fewer)

    def idle(
        self, busy: Collection[str], read: Collection[Piece] = (), *, lent: bool = False
    ) -> Iterator[IdleAgent]:
        """Agents that may be evicted, or what is `lent`, least recently used first: not busy, and
        not being written. Pieces that are `read` by rows stay in memory without them."""
        for agent_id, cache in self._caches.items():
            if agent_id not in busy and not cache.unwritten and cache.lent == lent:
                freed = [p for p in cache.pieces if p not in read and self.held.holders[p] == 1]
                size = sum(piece.nbytes for piece in freed)
                yield IdleAgent(agent_id, size, cache.end, cache.last_used, cache.saved)

    def check(self) -> None:
        """Prove the counts: who holds which piece and which blocks, and each byte once."""
        self.blocks.check()
        held = Counter(piece for cache in self._caches.values() for piece in cache.pieces)
        held += self.held.lent
        assert held == self.held.holders, "holders differ from the pieces that agents have"
        assert sum(piece.nbytes for piece in held) == self.held.nbytes, "bytes were lost"
        for agent_id, cache in self._caches.items():
            assert (cache.pieces[-1].end if cache.pieces else 0) == cache.end
            floor = self.blocks.held(agent_id) * BLOCK_TOKENS
            assert block_floor(cache.end) <= floor, f"{agent_id!r} holds too few blocks"

    def _replace(self, cache: HotCache, pieces: list[Piece]) -> None:
        self.held.hold(pieces)
        self.held.release(cache.pieces)
        cache.pieces = pieces

    def _first(self, pieces: Iterable[Piece], tokens: int) -> list[Piece]:
        """The pieces of the first `tokens` tokens; the last one may be cut, which copies it: its
        closed blocks apart from the open one, which the next turn replaces."""
        closed = block_floor(tokens)
        kept = [piece for piece in pieces if piece.start < tokens]
        if not kept or (last := kept[-1]).end <= tokens:
            return kept
        borders = sorted({last.start, max(last.start, closed), tokens})
        return [*kept[:-1], *(cut_piece(last, *part) for part in pairwise(borders))]
