"""Admission: which waiting turns may start, and the memory that decides it. GPU thread only.

It owns the queue of turns, the hot caches of idle agents, the accounting of blocks, and the
traffic of KV with the store: what is asked for, adopted, exported, and known to be on disk.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvactors.core.arena import Piece
from kvactors.core.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from kvactors.core.errors import MemoryExceeded
from kvactors.core.events import ExportedKV
from kvactors.core.model import LoadedModel
from kvactors.core.request import Request
from kvactors.core.residency import HotCaches, ranges_to_save
from kvactors.core.slots import grown_capacity
from kvactors.core.transcript import tokens_hash
from kvactors.core.wire import from_raw, to_raw

__all__ = ["Admission", "EngineConfig"]

# Admissions of others that raise a waiting turn's priority by one.
PATIENCE = 8


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`memory_budget` in bytes for KV; `stored`: idle caches can be read back from disk;
    `backlog_limit`: bytes waiting to be written above which nothing new is admitted."""

    max_batch: int
    memory_budget: int
    stored: bool
    target_latency: float = 0.1
    backlog_limit: int = 512 * 2**20


class Admission:
    """The waiting turns and the memory of agents. `arena_bytes` tells what rows hold."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        clock: Callable[[], float],
        arena_bytes: Callable[[], int],
    ) -> None:
        self.hot = HotCaches()
        self.pool = BlockPool(
            config.memory_budget // max(1, loaded.spec.bytes_per_token * BLOCK_TOKENS)
        )
        self.waiting: list[Request] = []
        self.backlog = 0
        self._loaded = loaded
        self._config = config
        self._clock = clock
        self._arena_bytes = arena_bytes
        self._arrivals = 0
        self._asked: dict[str, float] = {}
        self._restored: set[str] = set()

    # -- turns -------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether some waiting turn could start if there is room."""
        return not self._backed_up and any(not self._is_asked(r) for r in self.waiting)

    def submit(self, request: Request) -> None:
        """Queue a turn. Raises MemoryExceeded if it can never fit the budget."""
        need = blocks_for(_most_tokens(request))
        if need > self.pool.total:
            raise MemoryExceeded(
                f"{request.prompt} tokens and max_tokens {request.sampling.max_tokens} need "
                f"{need} blocks of {BLOCK_TOKENS} tokens; memory_budget holds {self.pool.total}"
            )
        self._arrivals += 1
        request.arrival = self._arrivals
        self.waiting.append(request)

    def withdraw(self, request: Request) -> None:
        """Take a turn out of the queue, if it is in it."""
        if request in self.waiting:
            self.waiting.remove(request)
            self._asked.pop(request.agent_id, None)
            self._restored.discard(request.agent_id)

    def admit(self, running: Sequence[Request]) -> tuple[list[Request], list[str]]:
        """The waiting turns that start now, in order, beside those `running`; and the agents
        whose KV must be read from the store first.

        A turn whose KV is being read holds its place and its blocks, so that no more is read
        than can be used.
        """
        started: list[Request] = []
        needed: list[str] = []
        self.waiting.sort(key=_rank)
        for request in list(self.waiting):
            reserved = [r for r in self.waiting if self._is_reserved(r)]
            held = [*running, *started, *reserved]
            if self._backed_up:
                break
            if self._is_asked(request):
                continue
            if request not in reserved:
                if len(held) >= self._config.max_batch or not self._make_room(request, held):
                    break
                if self._must_ask(request):
                    self._asked[request.agent_id] = self._clock()
                    needed.append(request.agent_id)
                    continue
            self.waiting.remove(request)
            self._start(request)
            started.append(request)
        if started:
            for request in self.waiting:
                request.passed_over += 1
        return started, needed

    # -- memory of agents --------------------------------------------------------------

    def provide(self, agent_id: str, stored: Sequence[ExportedKV]) -> None:
        """The KV that the store had for an agent; maybe none."""
        asked_at = self._asked.pop(agent_id, None)
        request = next((r for r in self.waiting if r.agent_id == agent_id), None)
        if request is None or asked_at is None:
            return
        self._restored.add(agent_id)
        self._adopt(request, stored)
        request.restored_at = self._clock() - asked_at

    def saved(self, agent_id: str, end: int, nbytes: int, ok: bool) -> None:
        """The store wrote KV up to `end`, or failed and holds only that much."""
        self.backlog -= nbytes
        cache = self.hot.get(agent_id)
        if cache is None:
            return
        if ok:
            cache.clean = max(cache.clean, min(end, cache.end))
        else:
            cache.saved = cache.clean = min(end, cache.clean)

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

    def export(self, request: Request) -> tuple[ExportedKV, ...]:
        """The KV of a finished turn that the store does not have, as bytes."""
        cache = self.hot.get(request.agent_id)
        if not self._config.stored or cache is None:
            return ()
        pieces = cache.slices(ranges_to_save(cache.saved, cache.end))
        cache.saved = cache.end
        exported = tuple(
            ExportedKV(
                piece.start,
                piece.end,
                # The end of the last piece was hashed when the turn ended.
                cache.identity
                if piece.end == cache.end
                else tokens_hash(request.tokens[: piece.end]),
                self._loaded.layout,
                to_raw(piece),
            )
            for piece in pieces
        )
        self.backlog += sum(part.nbytes for part in exported)
        return exported

    @property
    def _backed_up(self) -> bool:
        return self.backlog > self._config.backlog_limit

    def _is_asked(self, request: Request) -> bool:
        return request.agent_id in self._asked

    def _is_reserved(self, request: Request) -> bool:
        return request.agent_id in self._asked or request.agent_id in self._restored

    def _must_ask(self, request: Request) -> bool:
        """Whether the store may know KV of this agent that is not in memory."""
        past = request.prompt - request.fresh
        return self._config.stored and past > 0 and request.agent_id not in self.hot

    def _make_room(self, request: Request, held: Iterable[Request]) -> bool:
        """Evict idle agents until the turn fits, in blocks and in allocated bytes."""
        agent, tokens = request.agent_id, _most_tokens(request)
        # A row while it prefills, its copy among the decoding ones, and their growth.
        need = 2 * grown_capacity(0, tokens) * self._loaded.spec.bytes_per_token
        busy = [agent, *(other.agent_id for other in held)]
        victims = self.hot.victims(busy)

        def short_of_blocks() -> bool:
            return self.pool.missing(agent, tokens) > self.pool.free_blocks

        def short_of_bytes() -> bool:
            return self._arena_bytes() + self.hot.nbytes + need > self._config.memory_budget

        while victims and (short_of_blocks() or short_of_bytes()):
            self.forget(victims.pop(0))
        if short_of_blocks() or (len(busy) > 1 and short_of_bytes()):
            return False
        self.pool.allocate(agent, tokens)
        return True

    def _start(self, request: Request) -> None:
        cache = self.hot.touch(request.agent_id)
        self._restored.discard(request.agent_id)
        if cache.end and cache.identity != tokens_hash(request.tokens[: cache.end]):
            # Of a turn that was undone after it had ended here: not this agent's memory.
            self.hot.drop(request.agent_id)
            cache = self.hot.touch(request.agent_id)
        if request.cache_state == "cold" and cache.end:
            request.cache_state = "hot"
        request.kept = min(cache.end, request.target)
        request.admitted_at = self._clock()

    def _adopt(self, request: Request, stored: Sequence[ExportedKV]) -> None:
        """Make stored KV hot, as far as it belongs to the agent's own beginning."""
        known = request.tokens[: request.prompt - request.fresh]
        pieces: list[Piece] = []
        end = 0
        for part in stored:
            if part.start != end or part.end > len(known) or part.layout != self._loaded.layout:
                break
            if part.tokens_hash != tokens_hash(known[: part.end]):
                break
            groups = len(self._loaded.spec.groups())
            pieces.append(from_raw(part.tensors, part.start, part.end, groups))
            end = part.end
        if end:
            cache = self.hot.touch(request.agent_id)
            cache.pieces, cache.end, cache.saved, cache.clean = pieces, end, end, end
            cache.identity = tokens_hash(known[:end])
            request.cache_state = "warm"


def _rank(request: Request) -> tuple[int, int]:
    # Who was passed over often enough goes before higher priorities.
    return -(request.priority + request.passed_over // PATIENCE), request.arrival


def _most_tokens(request: Request) -> int:
    return request.prompt + (request.sampling.max_tokens if request.generate else 0)
