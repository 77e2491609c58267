"""One ledger of the bytes that turns and idle agents take, and who leaves when they are short.

Counted is what is really allocated: the arenas with their padding and spare slots, the hot
caches (a piece that several agents share once), the bytes that wait to be written, what
admitted turns were promised and have not taken yet; and beside it the work space that the
next forward needs. The budget bounds the sum. GPU thread only.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from time import perf_counter

import mlx.core as mx

from kvactors.core import limit
from kvactors.core.blocks import BLOCK_TOKENS, BlockPool
from kvactors.core.eviction import EvictionPolicy, IdleAgent
from kvactors.core.model import LoadedModel
from kvactors.core.residency import HotCaches
from kvactors.core.rows import Rows
from kvactors.core.trace import Evicted, Tracer
from kvactors.core.workspace import WorkSpace

__all__ = ["Memory"]

# Where no layer keeps every token, blocks are no measure: bytes alone bound what is held. Of
# KV in float fewer blocks fit than are counted: there, too, bytes are the bound.
MOST_BLOCKS = 1 << 16


class Memory:
    """Bytes and blocks of all agents, under one budget. `workspace`: for each form of KV."""

    def __init__(
        self,
        loaded: LoadedModel,
        budget: int,
        eviction: EvictionPolicy | None,
        clock: Callable[[], float],
        rows: Rows,
        tracer: Tracer,
    ) -> None:
        # What an engine before this one left must not count as there to stay.
        gc.collect()
        self.budget = budget
        self._tracer = tracer
        self.hot = HotCaches(loaded.spec)
        block = loaded.spec.bytes_per_token * BLOCK_TOKENS
        self.pool = BlockPool(min(MOST_BLOCKS, budget // max(1, block)))
        self.workspace = [WorkSpace.measure(form) for form in loaded.forms]
        self.backlog = self.expected = 0
        self.evictions = 0
        self._specs = [form.spec for form in loaded.forms]
        self._eviction = eviction
        self._clock = clock
        self._rows = rows
        self._baseline = mx.get_active_memory()
        limit.allow(self, self._baseline + budget)

    def resume(self, backlog: int) -> None:
        """Take over the bytes of another engine that wait to be written: they were there when
        this one measured."""
        self.backlog = backlog
        self._baseline -= backlog

    def expect(self, space: int) -> None:
        """The next forward was given this work space, twice what it takes when nothing is built
        ahead. What is built ahead leaves one half alone: MLX looks at its limit before it
        allocates, not after."""
        self.expected = space
        limit.allow(self, self._baseline + self.budget - space // 2)

    def release(self) -> None:
        """The engine has ended."""
        limit.withdraw(self)

    @property
    def used(self) -> int:
        """Bytes allocated for KV, and those that wait to be written."""
        return self._rows.nbytes + self.hot.nbytes + self.backlog

    @property
    def tight(self) -> bool:
        """Whether three quarters of the budget are used: no spare room is allocated then."""
        return self.used > 0.75 * self.budget

    @property
    def short(self) -> bool:
        """Whether half of the budget is taken by what cannot be evicted now: rows, the next
        forward, and what waits to be written, with the hot caches that it is of."""
        return self._rows.nbytes + self.expected + 2 * self.backlog > self.budget // 2

    @property
    def active(self) -> int:
        """Bytes that MLX itself counts above the loaded model: what `used` must agree with."""
        return int(mx.get_active_memory()) - self._baseline

    def bytes_of(self, tokens: int, in_float: bool) -> int:
        """Bytes of the KV of one agent that has so many tokens, in one of the forms."""
        return self._specs[in_float].bytes_of(tokens)

    def least(self, tokens: int, in_float: bool) -> int:
        """Bytes that a turn takes when it runs alone: its row, the copy of it that is kept when
        it ends, and a decode step."""
        space = self.workspace[in_float]
        return 2 * self.bytes_of(tokens, in_float) + space.decode(1, tokens)

    @property
    def room(self) -> int:
        """Bytes that nobody has and nobody was promised."""
        return self.budget - self.used - self._rows.promised_bytes(self.bytes_of)

    def fits(self, need: int) -> bool:
        """Whether so many more bytes stay within the budget, as things are."""
        return need <= self.room

    def plenty(self, need: int) -> bool:
        """Whether so many more bytes leave half of the budget to others."""
        return self.fits(need + self.budget // 2)

    def make_room(self, need: int, busy: Iterable[str]) -> bool:
        """Whether `need` more bytes fit, once spare room is given back and idle agents are
        evicted."""
        if self.fits(need):
            return True
        self._rows.shrink()
        return self.evict_until(lambda: self.fits(need), busy)

    def make_blocks(self, agent_id: str, tokens: int, busy: Iterable[str]) -> bool:
        """Let an agent hold the blocks of so many tokens; evicts for it."""
        if not self.evict_until(
            lambda: self.pool.missing(agent_id, tokens) <= self.pool.free_blocks, busy
        ):
            return False
        self.pool.allocate(agent_id, tokens)
        return True

    def evict_until(self, done: Callable[[], bool], busy: Iterable[str]) -> bool:
        """Evict idle agents in the policy's order until `done`; whether it is."""
        if done():
            return True
        for agent in self._leaving(frozenset(busy)):
            self.forget(agent.agent_id)
            self.evictions += 1
            if self._tracer.on:
                evicted = Evicted(perf_counter(), agent.agent_id, agent.nbytes, "memory")
                self._tracer.tell(evicted)
            if done():
                return True
        return False

    def _leaving(self, busy: frozenset[str]) -> Iterator[IdleAgent]:
        """Idle agents in the order in which they go; each is dropped before the next is asked
        for. A policy of the user's own sees all of them at once."""
        if self._eviction is None:
            while (oldest := next(self.hot.idle(busy), None)) is not None:
                yield oldest
            return
        idle = {agent.agent_id: agent for agent in self.hot.idle(busy)}
        for agent_id in self._eviction(list(idle.values()), self._clock()):
            if agent_id in idle:
                yield idle.pop(agent_id)

    def forget(self, agent_id: str) -> None:
        """Drop what is in memory of an agent."""
        self.hot.drop(agent_id)
        self.pool.free(agent_id)

    def settle(self, agent_id: str) -> None:
        """After a turn: hold the blocks of what is hot, no more."""
        cache = self.hot.get(agent_id)
        if cache is not None and cache.end == 0:
            self.hot.drop(agent_id)
        self.pool.shrink(agent_id, cache.end if cache else 0)
