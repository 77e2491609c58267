"""One owner of memory: what is held, what is promised, what waits to be written, and who leaves.

    held        the arenas of running turns with their padding and spare slots, the hot caches (a
                piece that several agents share once, one that rows read where it is too), the
                blocks of both, and what a draft model remembers, which goes first
    promised    what admitted turns have not taken yet, and what is being read from the store
    unwritten   the bytes that wait for the store
    expected    beside these, the work space of the next forward

The budget bounds the sum. GPU thread only.
"""

import gc
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from time import perf_counter
from typing import Protocol

import mlx.core as mx

from kvactors.core.arena.pieces import MOST_CHECKPOINTS, Piece
from kvactors.core.arena.wire import copied
from kvactors.core.cache.blocks import BLOCK_TOKENS, BlockPool
from kvactors.core.engine.hot_cache import HotCaches
from kvactors.core.engine.running import Rows, RunningBatches
from kvactors.core.errors import MemoryExceeded
from kvactors.core.model import mlx_limit
from kvactors.core.model.load import LoadedModel
from kvactors.core.model.workspace import WorkSpace, bare
from kvactors.core.schedule.eviction import EvictionPolicy, in_order
from kvactors.core.schedule.request import Request
from kvactors.core.trace import Evicted, Tracer

__all__ = ["Memory"]

# Where no layer keeps every token, blocks are no measure: bytes alone bound what is held. Of
# KV in float fewer blocks fit than are counted: there, too, bytes are the bound.
MOST_BLOCKS = 1 << 16


class Drafts(Protocol):
    """What a draft model remembers of agents: only for speed."""

    @property
    def nbytes(self) -> int:
        """Bytes of it."""

    def drop(self, agent_id: str) -> None:
        """Forget an agent."""

    def clear(self) -> None:
        """Forget all of them."""


class NoDrafts:
    """Without a draft model."""

    nbytes = 0

    def drop(self, agent_id: str) -> None:
        """Nothing is there."""

    def clear(self) -> None:
        """Nothing is there."""


class Memory:
    """Bytes and blocks of all agents, under one budget.

    Args:
        loaded: the model, in all its forms.
        budget: bytes of KV and work space.
        eviction: who leaves first; None for the longest idle.
        clock: seconds, for the policy.
        tracer: told of evictions.
        measure: finds the work space of a form.
        share: whether agents may hold the same memory.

    `running`: the batches of the turns that run, `rows`: what theirs take; `hot`: the caches of
    idle agents, and what those running began with; `promised`: bytes by agent whose KV is being
    read; `workspace`: for each form of KV; `drafts`: what a draft model remembers.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        budget: int,
        eviction: EvictionPolicy | None,
        clock: Callable[[], float],
        tracer: Tracer,
        *,
        share: bool = True,
    ) -> None:
        # What an engine before this one left must not count as there to stay.
        gc.collect()
        self.budget = budget
        self.share = share
        block = loaded.spec.bytes_per_token * BLOCK_TOKENS
        if budget < block:
            raise MemoryExceeded(
                f"memory_budget is {budget} bytes: {BLOCK_TOKENS} tokens of this model alone take "
                f"{block}, and a turn some times as many"
            )
        blocks = BlockPool(min(MOST_BLOCKS, budget // max(1, block)))

        def has_room(more: int) -> bool:
            """Evicts idle agents for it, but none in vain."""
            need = self.expected + more
            return need <= self.rows.leave(self.budget) and self.make_room(need)

        self.hot = HotCaches(loaded.spec, blocks, has_room)
        self.running = RunningBatches(loaded, self.hot)
        self.rows = Rows(self.running, self.hot)
        self.workspace = [WorkSpace.once(form) for form in loaded.forms]
        self.drafts: Drafts = NoDrafts()
        self.promised: dict[str, int] = {}
        self.backlog = self.expected = 0
        self.evictions = 0
        self._eviction = eviction
        self._clock = clock
        self._tracer = tracer
        self._baseline = mx.get_active_memory()
        mlx_limit.allow(self, self._baseline + budget)

    def resume(self, backlog: int) -> None:
        """Take over the bytes of another engine that wait to be written: they were there when
        this one measured."""
        self.backlog = backlog
        self._baseline -= backlog

    def expect(self, space: int) -> None:
        """The next forward was given this work space, more than it takes when nothing is built
        ahead. What is built ahead leaves as much alone: MLX looks at its limit before it
        allocates, not after."""
        self.expected = space
        mlx_limit.allow(self, max(0, self._baseline + self.budget - bare(space)))

    def release(self) -> None:
        """The engine has ended."""
        mlx_limit.withdraw(self)

    @property
    def used(self) -> int:
        """Bytes allocated for KV, and those that wait to be written: once, where both are one."""
        held = self.rows.nbytes + self.hot.held.nbytes + self.drafts.nbytes
        return held + self.backlog - self.hot.held.lent_bytes

    @property
    def tight(self) -> bool:
        """Whether three quarters of the budget are used: no spare room is allocated then."""
        return self.used > 0.75 * self.budget

    @property
    def short(self) -> bool:
        """Whether half of the budget is taken by what cannot be evicted now: rows, the next
        forward, and what waits to be written, with the hot caches that it is of."""
        return self.rows.nbytes + self.expected + 2 * self.backlog > self.budget // 2

    @property
    def active(self) -> int:
        """Bytes that MLX itself counts above the loaded model: what `used` must agree with."""
        return int(mx.get_active_memory()) - self._baseline

    def least(self, request: Request) -> int:
        """Bytes that a turn takes when it runs alone: its row, what it began with or others will,
        with all checkpoints of that, and while it prefills a chunk that is no longer than it must
        be; while it decodes, the copy that is kept when it ends, and a step; while a choice is
        scored, that."""
        space, bytes_of = self.workspace[request.form.index], request.form.bytes_of
        space = space.scored if request.scoring else space
        target, most, choice = request.target, request.most_tokens, request.longest_choice
        spec, extent, have = request.form.spec, self.running.extent, request.past
        held = max(have, request.shared)
        kept = 0 if request.forgotten else spec.bytes_to_keep(most, held)
        checkpoints = MOST_CHECKPOINTS if have else 1
        past = spec.bytes_per_token * held + checkpoints * spec.checkpoint_bytes(held)
        begun = bytes_of(extent(len(request.tokens) + choice)) + past
        return max(
            begun + space.alone(target),
            begun + bare(space.choice(choice, 1, target + choice)),
            bytes_of(extent(most)) + past + kept + space.decode(1, most),
        )

    @property
    def room(self) -> int:
        """Bytes that nobody has and nobody was promised."""
        return self.budget - self.used - self.rows.promised_bytes

    def promised_to_others(self, agent_id: str) -> int:
        """Bytes that are being read from the store for other agents."""
        return sum(self.promised.values()) - self.promised.get(agent_id, 0)

    def fits(self, need: int) -> bool:
        """Whether so many more bytes stay within the budget, as things are."""
        return need <= self.room

    def plenty(self, need: int) -> bool:
        """Whether so many more bytes leave half of the budget to others."""
        return self.fits(need + self.budget // 2)

    def can_draft(self, need: int, tokens: int, keys: int) -> bool:
        """Whether there is plenty of memory for a draft model, which is smaller than the model, to
        take `need` bytes more and be fed so many `tokens`, `keys` in all."""
        return self.plenty(need + self.workspace[0].chunk(tokens, 1, keys))

    def make_room(self, need: int, busy: Iterable[str] = ()) -> bool:
        """Whether `need` more bytes fit, once drafts are forgotten, spare room is given back and
        idle agents are evicted."""
        if self.fits(need):
            return True
        self.drafts.clear()
        self.running.shrink()
        return self.evict_until(lambda: self.fits(need), busy)

    def make_blocks(self, agent_id: str, tokens: int, busy: Iterable[str] = ()) -> bool:
        """Let `agent_id` hold the blocks of so many `tokens`; evicts others for it that are not
        `busy`."""
        blocks = self.hot.blocks
        if not self.evict_until(
            lambda: blocks.missing(agent_id, tokens) <= blocks.free_blocks, busy
        ):
            return False
        blocks.allocate(agent_id, tokens)
        return True

    def evict_until(self, done: Callable[[], bool], busy: Iterable[str]) -> bool:
        """Evict what is lent, then idle agents in the policy's order until `done`; whether it is.
        Those that are `busy` or run stay: a turn that was admitted has no row yet, and begins with
        its cache."""
        if done():
            return True
        taken = {*busy, *(request.agent_id for request in self.running.active)}
        read = self.rows.read
        idle = partial(self.hot.idle, taken, read)
        lent = in_order(None, partial(idle, lent=True), self._clock)
        for agent in chain(lent, in_order(self._eviction, idle, self._clock)):
            self.hot.drop(agent.agent_id)
            self.evictions += 1
            if self._tracer.on:
                evicted = Evicted(perf_counter(), agent.agent_id, agent.nbytes, "memory")
                self._tracer.tell(evicted)
            if done():
                return True
        return False

    def leave(self, request: Request) -> None:
        """A turn ended: its row goes, its agent holds the blocks of what is hot."""
        self.running.remove(request)
        self.hot.settle(request.agent_id)

    def fork(self, parent: str, child: str) -> None:
        """Let a new agent begin with all that another one has in memory: uncopied, where agents
        share."""
        source, copies = self.hot.get(parent), list[Piece]()
        if source is None:
            return
        if not self.share:
            if not self.make_room(sum(piece.nbytes for piece in source.pieces), [parent]):
                return
            copies = [copied(piece) for piece in source.pieces]
        cache = self.hot.fork(parent, child, copies)
        if not self.make_blocks(child, cache.end, [parent, child]):
            self.hot.drop(child)

    def check(self) -> None:
        """Prove the accounts: pieces, bytes and blocks of the hot caches, slots and lengths of
        those that run, and that nothing is owed below zero."""
        self.hot.check()
        self.running.check()
        pieces = {*self.hot.held.holders, *self.rows.read}
        both = sum(piece.nbytes for piece in pieces) + self.rows.arena_bytes + self.drafts.nbytes
        assert self.used == both + self.backlog - self.hot.held.lent_bytes, "bytes were lost"
        assert self.backlog >= 0, f"{self.backlog} bytes wait to be written"
        assert all(nbytes >= 0 for nbytes in self.promised.values()), self.promised
