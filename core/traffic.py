"""KV on its way: from the store, to the store, and from one agent to another. GPU thread only.

What is asked of the store is adopted as far as its token hashes belong to the agent's own
tokens. What two agents have in common is held once: a fork, or the same system prompt.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence

from kvactors.core.blocks import block_floor
from kvactors.core.events import ExportedKV
from kvactors.core.hashing import prefix_hashes
from kvactors.core.memory import Memory
from kvactors.core.model import LoadedModel
from kvactors.core.pieces import Piece
from kvactors.core.request import Request
from kvactors.core.spec import ModelCacheSpec
from kvactors.core.wire import from_raw, to_raw

__all__ = ["Traffic"]

logger = logging.getLogger(__name__)


class Traffic:
    """Which agents' KV is being read, and what became of what was written.

    `counts`: turns that began hot (hits), warm (restores) and cold (misses), and tokens that
    agents took from another's beginning.
    """

    def __init__(
        self, loaded: LoadedModel, memory: Memory, clock: Callable[[], float], *, stored: bool
    ) -> None:
        self.counts = {"hits": 0, "restores": 0, "misses": 0, "shared_tokens": 0}
        self.asked: dict[str, float] = {}
        self.restored: set[str] = set()
        # Of those, the ones of whom the store had nothing that fits.
        self._unknown: set[str] = set()
        self._loaded = loaded
        self._memory = memory
        self._clock = clock
        self._stored = stored
        # Agents whose KV is read ahead of a turn, and the tokens that they remember.
        self._ahead: dict[str, list[int]] = {}
        # Who has a beginning in memory, by its hash and form.
        self._donors: defaultdict[tuple[str, bool], dict[str, None]] = defaultdict(dict)
        self._layouts = {form.spec: form.layout for form in loaded.forms}

    # -- from the store ----------------------------------------------------------------

    def must_ask(self, request: Request) -> bool:
        """Whether the store may know KV of this agent that is not in memory."""
        agent_id, past = request.agent_id, request.prompt - request.fresh
        # What was restored may have been evicted again before the turn could start.
        known = agent_id in self._memory.hot or agent_id in self._unknown
        return self._stored and past > 0 and not known

    def ask(self, agent_id: str) -> None:
        """Note that the store is asked for an agent's KV."""
        self.restored.discard(agent_id)
        self.asked[agent_id] = self._clock()

    def prefetch(self, agent_id: str, tokens: list[int]) -> bool:
        """Whether an agent's KV is to be read ahead of its next turn: it is not in memory, and
        there is room."""
        memory = self._memory
        if not self._stored or agent_id in memory.hot or agent_id in self.asked:
            return False
        in_float = self._loaded.in_float(len(tokens))
        if not memory.make_room(memory.bytes_of(len(tokens), in_float), [agent_id]):
            return False
        if not memory.make_blocks(agent_id, len(tokens), [agent_id]):
            return False
        self._ahead[agent_id] = tokens
        self.ask(agent_id)
        return True

    def provide(self, agent_id: str, stored: Sequence[ExportedKV], request: Request | None) -> None:
        """The KV that the store had for an agent, maybe none; `request` waits for it, if any."""
        asked_at = self.asked.pop(agent_id, None)
        ahead = self._ahead.pop(agent_id, None)
        if asked_at is None:
            return
        if request is not None:
            self.restored.add(agent_id)
            past = request.tokens[: request.prompt - request.fresh]
            if not self._adopt(agent_id, past, stored, request.in_float):
                self._unknown.add(agent_id)
            elif not request.preempted:
                request.cache_state = "warm"
            request.restored_at = self._clock() - asked_at
        elif ahead is not None:
            self._adopt(agent_id, ahead, stored, self._loaded.in_float(len(ahead)))
            self._memory.settle(agent_id)

    def forget(self, agent_id: str) -> None:
        """Drop what is in memory of an agent, or on its way there."""
        self.withdraw(agent_id)
        self._memory.forget(agent_id)

    def withdraw(self, agent_id: str) -> None:
        """Nobody waits for this agent's KV any more."""
        self.asked.pop(agent_id, None)
        self._ahead.pop(agent_id, None)
        self.begun(agent_id)

    def begun(self, agent_id: str) -> None:
        """The turn that waited for this agent's KV has begun."""
        self.restored.discard(agent_id)
        self._unknown.discard(agent_id)

    def _adopt(
        self, agent_id: str, known: list[int], stored: Sequence[ExportedKV], in_float: bool
    ) -> bool:
        """Make stored KV hot, as far as it belongs to the agent's own beginning and has the form
        that its turn needs."""
        pieces: list[Piece] = []
        form = self._loaded.forms[in_float]
        for part, digest in zip(stored, prefix_hashes(known, (p.end for p in stored)), strict=True):
            end = pieces[-1].end if pieces else 0
            if part.start != end or part.end > len(known) or part.layout != form.layout:
                break
            if part.tokens_hash != digest:
                break
            pieces.append(from_raw(part.tensors, part.start, part.end, form.spec))
        while pieces and not pieces[-1].whole:
            pieces.pop()
        if not pieces:
            return False
        cache = self._memory.hot.adopt(agent_id, pieces, known[: pieces[-1].end])
        cache.saved_ends = [piece.end for piece in pieces]
        cache.last_used = self._clock()
        return True

    # -- to the store ------------------------------------------------------------------

    def export(self, request: Request) -> tuple[ExportedKV, ...]:
        """The KV of a finished turn that the store does not have, as bytes."""
        cache = self._memory.hot.get(request.agent_id)
        if not self._stored or cache is None:
            return ()
        ranges = cache.ranges_to_save()
        hashes = prefix_hashes(cache.tokens, (end for _, end in ranges))
        exported = tuple(
            ExportedKV(piece.start, piece.end, digest, self._layouts[piece.spec], to_raw(piece))
            for piece, digest in zip(cache.slices(ranges), hashes, strict=True)
        )
        cache.mark_saved(ranges)
        nbytes = sum(part.nbytes for part in exported)
        cache.unwritten += nbytes
        self._memory.backlog += nbytes
        return exported

    def saved(self, agent_id: str, nbytes: int, limit: int | None) -> None:
        """So much KV no longer waits for the store, which has no more than `limit` tokens of it."""
        self._memory.backlog -= nbytes
        cache = self._memory.hot.get(agent_id)
        if cache is not None:
            cache.unwritten = max(0, cache.unwritten - nbytes)
            if limit is not None:
                cache.limit_saved(limit)

    # -- from one agent to another -----------------------------------------------------

    def offer(self, request: Request) -> None:
        """Let others begin with this turn's system prompt, whose KV is in memory now."""
        if request.shared:
            self._donors[request.beginning, request.in_float][request.agent_id] = None

    def donor(self, request: Request) -> str | None:
        """An agent whose hot cache has this turn's system prompt, in its form."""
        key = request.beginning, request.in_float
        if not request.shared or key not in self._donors:
            return None
        donors, beginning = self._donors[key], request.tokens[: request.shared]
        for agent_id in list(donors):
            cache = self._memory.hot.get(agent_id)
            fits = cache is not None and cache.in_form(self._spec(request))
            if cache is not None and fits and cache.tokens[: request.shared] == beginning:
                if not self._loaded.spec.checkpointed:
                    return agent_id
                if cache.reusable(request.shared) == request.shared:
                    return agent_id
            del donors[agent_id]
        del self._donors[key]
        return None

    def prepare(self, request: Request) -> None:
        """Cut the agent's cache to what the turn has in common with it; without one, begin
        with that of an agent with the same system prompt."""
        memory, agent_id = self._memory, request.agent_id
        cache = memory.hot.get(agent_id)
        had = cache.end if cache else 0
        common = memory.hot.keep_common(agent_id, self._reusable(request), self._spec(request))
        if common < had:
            memory.pool.shrink(agent_id, block_floor(common))
            logger.debug("%r goes back from token %d to %d", agent_id, had, common)
        donor = None if common else self.donor(request)
        if donor is not None:
            cache = memory.hot.share(donor, agent_id, request.tokens[: request.shared])
            memory.pool.free(agent_id)
            memory.pool.share(donor, agent_id, cache.end)
            self.counts["shared_tokens"] += cache.end

    def _spec(self, request: Request) -> ModelCacheSpec:
        """Of the form that the turn's KV is in."""
        return self._loaded.forms[request.in_float].spec

    def _reusable(self, request: Request) -> list[int]:
        """The tokens that the turn may begin with. The last one is fed by the first step, and
        states that have taken it cannot give it back."""
        if not self._loaded.spec.checkpointed:
            return request.tokens
        return request.tokens[: request.target]

    def fork(self, parent: str, child: str) -> None:
        """Let a new agent begin with all that another one has in memory, uncopied."""
        cache = self._memory.hot.get(parent)
        if cache is None:
            return
        self._memory.hot.fork(parent, child)
        self._memory.pool.share(parent, child, cache.end)
        if not self._memory.make_blocks(child, cache.end, [parent, child]):
            self._memory.forget(child)
