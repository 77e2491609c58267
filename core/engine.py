"""The engine: admits turns, runs what the scheduler plans, says what came of it.

It knows no actor, no thread and no disk. The GPU actor submits requests, calls `step` again
and again while it is `busy`, and passes the events on. Owned by one thread.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvactors.core.arena import Piece
from kvactors.core.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from kvactors.core.errors import MemoryExceeded, TurnFailed
from kvactors.core.events import (
    Aborted,
    Event,
    ExportedKV,
    Finished,
    KVNeeded,
    Progress,
    Tokens,
)
from kvactors.core.model import LoadedModel
from kvactors.core.request import Request
from kvactors.core.residency import HotCaches, ranges_to_save
from kvactors.core.runner import DecodeBatch, Decoded, PrefillBatch
from kvactors.core.scheduler import Chunk, Scheduler, SchedulerConfig
from kvactors.core.transcript import tokens_hash
from kvactors.core.wire import RawTensor, from_raw, to_raw

__all__ = ["Engine", "EngineConfig"]

# Tokens that a suspect of a failed step decodes alone before it rejoins the batch.
PROBATION = 3


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`memory_budget` in bytes for KV; `stored`: idle caches can be read back from disk;
    `backlog_limit`: bytes waiting to be written above which nothing new is admitted."""

    max_batch: int
    memory_budget: int
    stored: bool
    target_latency: float = 0.1
    backlog_limit: int = 512 * 2**20


class Engine:
    """Continuous batching over agents' caches. Seed 001, 3.4; design, One turn end to end."""

    def __init__(
        self,
        loaded: LoadedModel,
        config: EngineConfig,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.loaded = loaded
        self.config = config
        self.hot = HotCaches()
        self.pool = BlockPool(
            config.memory_budget // max(1, loaded.spec.bytes_per_token * BLOCK_TOKENS)
        )
        self.backlog = 0
        self._clock = clock
        self._scheduler = Scheduler(
            SchedulerConfig(config.target_latency, reproducible=loaded.policy.reproducible)
        )
        self._arrivals = 0
        self._waiting: list[Request] = []
        self._asked: dict[str, float] = {}
        self._absent: set[str] = set()
        self._prefills: dict[Request, PrefillBatch | None] = {}
        self._decode = DecodeBatch(loaded)
        self._suspects: list[DecodeBatch] = []
        self._events: list[Event] = []

    # -- the GPU actor's side ----------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether `step` has work: something runs, or something waits that can start."""
        if self._prefills or len(self._decode) or self._suspects:
            return True
        return not self._backed_up and any(map(self._startable, self._waiting))

    def submit(self, request: Request) -> None:
        """Queue a turn. Raises MemoryExceeded if it can never fit the budget."""
        need = blocks_for(self._most_tokens(request))
        if need > self.pool.total:
            raise MemoryExceeded(
                f"{len(request.tokens)} tokens and max_tokens {request.sampling.max_tokens} need "
                f"{need} blocks of {BLOCK_TOKENS} tokens; memory_budget holds {self.pool.total}"
            )
        self._arrivals += 1
        request.arrival = self._arrivals
        self._waiting.append(request)

    def provide(self, agent_id: str, stored: Sequence[ExportedKV]) -> None:
        """The KV that the store had for an agent, in answer to KVNeeded; maybe none."""
        asked_at = self._asked.pop(agent_id, None)
        request = next((r for r in self._waiting if r.agent_id == agent_id), None)
        if request is None or asked_at is None:
            return
        self._adopt(request, stored)
        request.restored_at = self._clock() - asked_at
        self._absent.add(agent_id)

    def saved(self, agent_id: str, end: int, nbytes: int, ok: bool) -> None:
        """The store wrote KV up to `end`, or failed and holds only that much."""
        self.backlog -= nbytes
        cache = self.hot.get(agent_id)
        if cache is None:
            return
        if ok:
            cache.clean = max(cache.clean, end)
        else:
            cache.saved = cache.clean = min(end, cache.clean)

    def cancel(self, agent_id: str, serial: int, error: Exception | None = None) -> None:
        """End a turn at the next step; with an error it fails and leaves no trace."""
        for request in self._running():
            if request.agent_id == agent_id and request.serial == serial:
                if error is not None:
                    self._abort(request, error)
                else:
                    request.cancelled = True

    def forget(self, agent_id: str) -> None:
        """Drop everything in memory of an agent that has no turn running."""
        self.hot.drop(agent_id)
        self.pool.free(agent_id)
        self._absent.discard(agent_id)

    def step(self) -> list[Event]:
        """Run one plan: some prefill, one decode step. Returns what happened."""
        self._end_cancelled()
        self._admit()
        prefilling = [request for request in self._prefills if request.remaining]
        plan = self._scheduler.plan(prefilling, len(self._decode))
        if plan.prefill:
            self._run_prefill(plan.prefill, plan.decode)
        self._hand_over()
        if not self._prefills:
            self._scheduler.prefill_ended()
        if len(self._decode):
            self._run_decode(self._decode)
        for batch in list(self._suspects):
            self._run_decode(batch)
            self._rejoin(batch)
        return self._drain()

    def check(self) -> None:
        """Prove the bookkeeping; what an idle engine holds is exactly its hot caches."""
        self.pool.check()
        self._decode.arena.table.check()
        for request in self._running():
            request.check()

    def stats(self) -> dict[str, int]:
        """Counts and bytes, for AgentSystem.stats()."""
        return {
            "waiting": len(self._waiting),
            "prefilling": len(self._prefills),
            "decoding": len(self._decode) + sum(map(len, self._suspects)),
            "hot_agents": len(self.hot),
            "hot_bytes": self.hot.nbytes,
            "arena_bytes": self._allocated() - self.hot.nbytes,
            "backlog_bytes": self.backlog,
            "blocks_used": self.pool.used_blocks,
            "blocks_total": self.pool.total,
        }

    # -- admission ---------------------------------------------------------------------

    def _running(self) -> list[Request]:
        suspects = [request for batch in self._suspects for request in batch.requests]
        return [*self._waiting, *self._prefills, *self._decode.requests, *suspects]

    def _active(self) -> int:
        return len(self._prefills) + len(self._decode) + sum(map(len, self._suspects))

    def _allocated(self) -> int:
        batches = {*self._prefills.values(), self._decode, *self._suspects} - {None}
        return sum(batch.arena.nbytes for batch in batches if batch) + self.hot.nbytes

    @property
    def _backed_up(self) -> bool:
        return self.backlog > self.config.backlog_limit

    def _startable(self, request: Request) -> bool:
        return request.agent_id not in self._asked

    def _admit(self) -> None:
        self._waiting.sort(key=lambda request: (-request.priority, request.arrival))
        for request in list(self._waiting):
            if self._active() >= self.config.max_batch or self._backed_up:
                return
            if not self._startable(request) or self._ask_for_kv(request):
                continue
            if not self._make_room(request):
                return
            self._waiting.remove(request)
            self._start(request)

    def _ask_for_kv(self, request: Request) -> bool:
        """Ask the store once for an agent that has a past and no hot cache."""
        agent = request.agent_id
        known = request.prompt - request.fresh
        if not self.config.stored or agent in self.hot or agent in self._absent or known == 0:
            return False
        self._asked[agent] = self._clock()
        self._events.append(KVNeeded(agent))
        return True

    def _make_room(self, request: Request) -> bool:
        """Evict idle agents until the turn fits, in blocks and in allocated bytes."""
        agent, tokens = request.agent_id, self._most_tokens(request)
        need = tokens * self.loaded.spec.bytes_per_token
        victims = self.hot.victims(other.agent_id for other in self._running())

        def short_of_blocks() -> bool:
            return self.pool.missing(agent, tokens) > self.pool.free_blocks

        def short_of_bytes() -> bool:
            return self._allocated() + need > self.config.memory_budget

        while victims and (short_of_blocks() or short_of_bytes()):
            self.forget(victims.pop(0))
        if short_of_blocks() or (self._active() and short_of_bytes()):
            return False
        self.pool.allocate(agent, tokens)
        return True

    def _most_tokens(self, request: Request) -> int:
        return request.prompt + (request.sampling.max_tokens if request.generate else 0)

    def _adopt(self, request: Request, stored: Sequence[ExportedKV]) -> None:
        """Make stored KV hot, as far as it belongs to the agent's own beginning."""
        known = request.tokens[: request.prompt - request.fresh]
        pieces: list[Piece] = []
        end = 0
        for part in stored:
            if part.start != end or part.end > len(known) or part.layout != self.loaded.layout:
                break
            if part.tokens_hash != tokens_hash(known[: part.end]):
                break
            groups = len(self.loaded.spec.groups())
            pieces.append(from_raw(part.tensors, part.start, part.end, groups))
            end = part.end
        if end:
            cache = self.hot.touch(request.agent_id)
            cache.pieces, cache.end, cache.saved, cache.clean = pieces, end, end, end
            request.cache_state = "warm"

    def _start(self, request: Request) -> None:
        cache = self.hot.touch(request.agent_id)
        self._absent.discard(request.agent_id)
        if request.cache_state == "cold" and cache.end:
            request.cache_state = "hot"
        request.kept = request.cached = min(cache.end, request.target)
        request.admitted_at = self._clock()
        self._begin(request)

    def _begin(self, request: Request) -> None:
        """Prefill from what is hot of it; its row is made when its first chunk runs."""
        request.cached = min(self.hot.touch(request.agent_id).end, request.target)
        self._prefills[request] = None

    # -- running -----------------------------------------------------------------------

    def _run_prefill(self, chunks: Sequence[Chunk], decoding: bool) -> None:
        batch = self._batch_for([chunk.request for chunk in chunks])
        begin = self._clock()
        try:
            computed = batch.run(chunks)
        except Exception as error:
            self._blame(batch.requests, error)
            return
        self._scheduler.record_prefill(computed, self._clock() - begin, decoding)
        for request in batch.requests:
            total = request.target - request.kept
            done = request.cached - request.kept
            self._events.append(Progress(request.agent_id, done, total))

    def _batch_for(self, requests: Sequence[Request]) -> PrefillBatch:
        """The batch of a request, or a new one for all that start together."""
        batch = self._prefills[requests[0]]
        if batch is None:
            batch = PrefillBatch(self.loaded)
            for request in requests:
                batch.add(request, self.hot.touch(request.agent_id).pieces)
                self._prefills[request] = batch
        return batch

    def _hand_over(self) -> None:
        """Requests whose prompt is cached go on to decode, or end if no answer is wanted."""
        for request in [r for r in self._prefills if not r.remaining]:
            batch = self._batch_for([request])
            request.prefilled_at = self._clock()
            if not request.generate:
                self._finish(request, "stop")
                continue
            target = self._decode
            if request.isolated:
                target = DecodeBatch(self.loaded)
                self._suspects.append(target)
            target.join(request, batch.arena, batch.row(request))
            del self._prefills[request]
            batch.remove(request)

    def _run_decode(self, batch: DecodeBatch) -> None:
        begin = self._clock()
        try:
            decoded = batch.step()
        except Exception as error:
            self._blame(batch.requests, error)
            return
        self._scheduler.record_decode(self._clock() - begin)
        for item in decoded:
            if item.request in batch.requests:
                self._receive(item)

    def _receive(self, item: Decoded) -> None:
        request = item.request
        if item.error is not None:
            self._abort(request, _failure(request, item.error))
            return
        if not request.generated:
            request.first_token_at = self._clock()
        request.tokens.append(item.token)
        request.cached = len(request.tokens) - 1
        self._events.append(Tokens(request.agent_id, request.serial, (item.token,)))
        if item.token in request.stop_tokens or request.matcher.matches(request.generated):
            self._finish(request, "stop")
        elif len(request.generated) >= request.sampling.max_tokens:
            self._finish(request, "length")

    def _rejoin(self, batch: DecodeBatch) -> None:
        """A suspect that decoded alone for a while is innocent: back into the batch."""
        if not batch.requests:
            self._suspects.remove(batch)
            return
        request = batch.requests[0]
        request.probation -= 1
        if request.probation <= 0:
            row = batch.cut(request)
            request.isolated = False
            self._decode.join(request, batch.arena, row)
            self._suspects.remove(batch)

    def _blame(self, requests: Sequence[Request], error: Exception) -> None:
        """A step failed. Alone, the request is guilty; together, each is tried alone.

        The step may have donated the buffers of every row, so nothing of the batch is
        reused: rows are rebuilt from their last pieces and their token ids.
        """
        suspects = list(requests)
        self._discard(suspects)
        for request in suspects:
            if len(suspects) == 1:
                self._abort(request, _failure(request, error))
            else:
                request.isolated, request.probation = True, PROBATION
                self._begin(request)

    def _discard(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._prefills.pop(request, None)
        if any(request in self._decode.requests for request in requests):
            self._decode = DecodeBatch(self.loaded)
        self._suspects = [
            batch for batch in self._suspects if not set(batch.requests) & set(requests)
        ]

    # -- ending ------------------------------------------------------------------------

    def _end_cancelled(self) -> None:
        for request in self._running():
            if request.cancelled:
                self._finish(request, "cancelled")

    def _finish(self, request: Request, reason: str) -> None:
        """End a turn well: its KV becomes hot, what is new of it goes to the store."""
        cache = self.hot.touch(request.agent_id)
        batch = self._batch_of(request)
        if isinstance(batch, DecodeBatch):
            cache.take(batch.arena, batch.cut(request), request.cached)
        elif batch is not None:
            cache.take(batch.arena, batch.row(request), request.cached)
        self._remove(request)
        self._settle(request.agent_id)
        exported = self._export(request)
        self._events.append(Finished(request, reason, self._clock(), exported))

    def _abort(self, request: Request, error: Exception) -> None:
        """End a turn without a trace: the agent's cache is as before it."""
        self._remove(request)
        self._settle(request.agent_id)
        self._events.append(Aborted(request.agent_id, request.serial, error))

    def _settle(self, agent_id: str) -> None:
        """Hold the blocks of what is hot, no more."""
        cache = self.hot.get(agent_id)
        if cache is not None and cache.end == 0:
            self.hot.drop(agent_id)
        self.pool.shrink(agent_id, cache.end if cache else 0)

    def _batch_of(self, request: Request) -> PrefillBatch | DecodeBatch | None:
        if request in self._prefills:
            return self._prefills[request]
        decoding = (b for b in [self._decode, *self._suspects] if request in b.requests)
        return next(decoding, None)

    def _remove(self, request: Request) -> None:
        batch = self._batch_of(request)
        if batch is not None:
            batch.remove(request)
        self._prefills.pop(request, None)
        self._asked.pop(request.agent_id, None)
        self._suspects = [batch for batch in self._suspects if batch.requests]
        if request in self._waiting:
            self._waiting.remove(request)

    def _export(self, request: Request) -> tuple[ExportedKV, ...]:
        cache = self.hot.get(request.agent_id)
        if not self.config.stored or cache is None:
            return ()
        pieces = cache.slices(ranges_to_save(cache.saved, cache.end))
        cache.saved = cache.end
        exported = tuple(self._to_bytes(piece, request) for piece in pieces)
        self.backlog += sum(part.nbytes for part in exported)
        return exported

    def _to_bytes(self, piece: Piece, request: Request) -> ExportedKV:
        tensors: tuple[RawTensor, ...] = to_raw(piece)
        known = tokens_hash(request.tokens[: piece.end])
        return ExportedKV(piece.start, piece.end, known, self.loaded.layout, tensors)

    def _drain(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _failure(request: Request, error: Exception) -> TurnFailed:
    failure = TurnFailed(
        f"turn {request.turn} of {request.agent_id!r} failed: {type(error).__name__}: {error}"
    )
    failure.__cause__ = error
    return failure
