"""Admission: which waiting turns may start beside those that run. GPU thread only."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvactors.core.cache.slots import EXTENT_STEP
from kvactors.core.engine.kv_transfer import KVTransfer
from kvactors.core.engine.memory import Memory
from kvactors.core.engine.prefix_sharing import Beginning, PrefixSharing
from kvactors.core.errors import AdmissionFull, MemoryExceeded
from kvactors.core.schedule.events import KVNeeded
from kvactors.core.schedule.eviction import EvictionPolicy
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.speculation.speculation import SpeculationConfig
from kvactors.core.schedule.waiting import WaitingTurns

__all__ = ["Admission", "EngineConfig"]

# Waiting turns that a step looks at, so that it takes no longer when more wait: beyond those that
# wait for a beginning which is just prefilled, the first that may start is among them.
LOOKED_AT = 64
# Bytes waiting to be written above which nothing new is admitted.
MOST_BACKLOG = 512 * 2**20
_COUNTED = {"hot": "hits", "warm": "restores", "cold": "misses"}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`memory_budget` in bytes for KV and work space; `stored`: idle caches can be read back
    from disk; `eviction`: who leaves memory first, None for the longest idle; `max_waiting`: turns
    that may wait to be admitted; `share`: whether agents may hold the same memory; `speculation`:
    whether drafts are checked, and whose."""

    max_batch: int
    memory_budget: int
    stored: bool
    target_latency: float | None = None
    eviction: EvictionPolicy | None = None
    max_waiting: int = 100_000
    share: bool = True
    speculation: SpeculationConfig | None = None


class Admission:
    """The waiting turns. What they wait for is room, their KV from the store, or the turn that
    prefills what they begin with. `config` bounds it, `memory` has the room,
    `transfer` reads from the store, `sharing` knows who prefills what; `clock` gives seconds."""

    def __init__(
        self,
        config: EngineConfig,
        memory: Memory,
        transfer: KVTransfer,
        sharing: PrefixSharing,
        clock: Callable[[], float],
    ) -> None:
        self.waiting = WaitingTurns()
        # Turns that began hot, warm and cold.
        self.counts = dict.fromkeys(_COUNTED.values(), 0)
        # Of those, the ones whose KV was asked of the store: they hold a place and bytes.
        self._places: dict[Request, None] = {}
        self._config = config
        self._memory = memory
        self._transfer = transfer
        self._sharing = sharing
        self._clock = clock
        self._ended = 0
        self.blocked = False
        """Whether a turn waits for room."""

    @property
    def ready(self) -> bool:
        """Whether some waiting turn could start if there is room."""
        if self._backed_up or self.blocked:
            return False
        return any(not self._transfer.reading(r.agent_id) for r in self._candidates(0))

    def retry(self) -> None:
        """Something changed that a turn may have waited for."""
        self.blocked = False

    def ended(self, request: Request) -> None:
        """A turn ended: it waits no more, or what it held is free."""
        if request in self.waiting:
            self._take(request)
            self._transfer.withdraw(request.agent_id)
        self._ended += 1
        self.retry()

    def submit(self, request: Request) -> None:
        """Queue a turn. Raises MemoryExceeded if it can never fit the budget, AdmissionFull if
        too many wait."""
        if len(self.waiting) >= self._config.max_waiting:
            raise AdmissionFull(
                f"{len(self.waiting)} turns wait to be admitted, the most allowed (max_waiting)"
            )
        need = self._memory.least(request)
        budget = self._memory.budget
        if need > budget:
            raise MemoryExceeded(
                f"{request.prompt} tokens and max_tokens {request.sampling.max_tokens} need "
                f"{need} bytes while they run; memory_budget is {budget}"
            )
        self.waiting.add(request)
        self.promise(request.agent_id)
        self.retry()

    def promise(self, agent_id: str) -> None:
        """A turn whose KV is being read, or was, holds a place and the bytes that it will need."""
        for request in self.waiting.of(agent_id):
            if request in self._places or self._transfer.reading(agent_id):
                self._places[request] = None
                self._memory.promised[agent_id] = self._row_bytes(request)

    def put_back(self, request: Request) -> None:
        """Queue a turn that gave way; it keeps its arrival, and waits for another to end."""
        request.preempted += 1
        request.gave_way_after = self._ended
        self.waiting.add(request)

    def resume(self, turns: Iterable[Request]) -> None:
        """Queue turns that another engine had to abandon; they begin again from their tokens."""
        for request in turns:
            request.kept = request.cached = 0
            request.gave_way_after = -1
            self.waiting.add(request)
        self.retry()

    def empty(self) -> list[Request]:
        """Take all turns out of the queue, for another engine to resume."""
        turns = list(self.waiting)
        for request in turns:
            self._take(request)
        return turns

    def admit(self, running: Sequence[Request]) -> Iterator[Request | KVNeeded]:
        """The waiting turns that start now, in order, beside those `running`; and the agents
        whose KV must be read from the store first. Each turn is out of the queue when it is given.

        A turn whose KV is being read holds its place and its blocks, so that no more is read
        than can be used.
        """
        active, held = list(running), [*running, *self._places]
        asked = full = False
        # What a turn may wait for is prefilled by who runs, or holds a place before it: it is
        # known of those when the next one is looked at.
        ahead, prefilled = list(running), dict[Beginning, Request]()
        for request in self._candidates(len(running)):
            if self._backed_up:
                break
            has_place, places = request in self._places, self._places_for(request)
            if not has_place and (full or len(held) >= places):
                continue
            for other in ahead:
                prefilled |= self._sharing.prefilled_by(other)
            ahead = [request] if has_place else []
            waits = self._transfer.reading(request.agent_id) or self._follows(request, prefilled)
            if waits or len(active) >= places:
                continue
            self._sharing.prepare(request, self._transfer.must_ask_for_more)
            if self._gave_way_to(request, active) or not self._make_room(request, active, held):
                self.blocked = full = True
                continue
            if not has_place:
                held.append(request)
                ahead.append(request)
            if self._transfer.must_ask(request):
                self._transfer.ask(request.agent_id, self._row_bytes(request))
                self._places[request] = None
                asked = True
                yield KVNeeded(request.agent_id)
            else:
                self._take(request)
                self._start(request)
                active.append(request)
                yield request
        if len(active) > len(running):
            self.waiting.admitted()
        elif not active and not asked:
            # All wait for what is being read.
            self.blocked = True

    def _candidates(self, running: int) -> list[Request]:
        """The waiting turns that may start beside so many running ones, the next one first."""
        if running + len(self._places) >= self._config.max_batch:
            return self.waiting.in_order(self._places)
        first = self.waiting.first(max(LOOKED_AT, 2 * self._config.max_batch))
        return self.waiting.in_order({*first, *self._places}) if self._places else first

    def _places_for(self, request: Request) -> int:
        """How many may run beside each other for this one to begin: who gives way to others leaves
        a place for them."""
        return max(1, self._config.max_batch - (self.waiting.level(request) < 0))

    def _take(self, request: Request) -> None:
        self.waiting.remove(request)
        self._places.pop(request, None)

    @property
    def _backed_up(self) -> bool:
        return self._memory.backlog > MOST_BACKLOG

    def _follows(self, request: Request, prefilled: Mapping[Beginning, Request]) -> bool:
        """Whether what this turn begins with is just `prefilled` by another."""
        if not prefilled or self._transfer.must_ask_for_more(request):
            return False
        return self._sharing.awaits(request, prefilled)

    def _gave_way_to(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether the turns that this one gave way to still run, all of them."""
        return bool(running and request.preempted and request.gave_way_after == self._ended)

    def _make_room(
        self, request: Request, active: Sequence[Request], held: Sequence[Request]
    ) -> bool:
        """Evict idle agents until the turn fits, and what is being read for others that `held`
        a place. What it decodes is not promised.

        Of those that hold one, the first goes on in any case when nobody is active and all is
        saved: what was restored for the others leaves.
        """
        memory, agent_id = self._memory, request.agent_id
        reserved = [other for other in held if other not in active and other is not request]
        busy = {agent_id, *(other.agent_id for other in held)}
        space = memory.workspace[request.form.index]
        trunk = memory.rows.read_once(request, 1 + len(active))
        need = self._row_bytes(request) + space.least(len(request.tokens), len(active), trunk)
        # Or who answers would need its room at once.
        need += memory.rows.most_to_keep()
        # What is read for others must find room too when it arrives.
        promised = memory.promised_to_others(agent_id)
        blocks = len(request.tokens) + 1
        if active and need + promised > memory.rows.leave(memory.budget):
            # Nobody is evicted for it in vain.
            return False
        fits = memory.make_room(need + promised, busy) and memory.make_blocks(
            agent_id, blocks, busy
        )
        if fits or active or memory.backlog or (reserved and request not in held):
            return fits
        memory.make_room(need, [agent_id])
        return memory.make_blocks(agent_id, blocks, [agent_id])

    def _row_bytes(self, request: Request) -> int:
        """What a turn takes when it begins: its row while it prefills, its copy among the
        decoding ones, and what is still to be read of it."""
        # A turn that was put back once comes again only when all of it will fit.
        tokens = request.most_tokens if request.preempted else len(request.tokens) + 1
        tokens += request.longest_choice
        unread = self._transfer.must_ask(request) or self._transfer.reading(request.agent_id)
        past = request.past if unread else 0
        row = self._memory.rows.own_bytes(request, tokens + EXTENT_STEP)
        return 2 * row + request.form.bytes_of(past)

    def note_cache(self, request: Request) -> None:
        """Note where the agent's KV is when its turn begins, or ends before it began."""
        cache = self._memory.hot.get(request.agent_id)
        own = cache is not None and cache.end and not cache.borrowed
        if request.cache_state == "cold" and own and not request.preempted:
            request.cache_state = "hot"

    def _start(self, request: Request) -> None:
        """Begin from what is hot of the agent."""
        self._transfer.withdraw(request.agent_id)
        cache = self._memory.hot.touch(request.agent_id, self._clock())
        cache.shared = cache.shared or cache.aligned(request.shared)
        if request.preempted:
            return
        self.note_cache(request)
        request.kept = 0 if request.scoring else min(cache.end, request.target)
        request.admitted_at = self._clock()
        self.counts[_COUNTED[request.cache_state]] += 1
