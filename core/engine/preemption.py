"""When memory is short: drafts go first, then chunks get shorter, then idle agents leave, then a
turn gives way.

A turn that gives way goes back into the queue and is resumed by itself; what it had decoded
stays in its request, so its tokens are the same as if nothing had happened. GPU thread.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from kvactors.core.arena.pieces import LONGEST_PIECE
from kvactors.core.engine.failure import is_fatal
from kvactors.core.engine.memory import Memory
from kvactors.core.engine.runner import SPARE_TOKENS, DecodeBatch, PrefillBatch
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.scheduler import Chunk

__all__ = ["Preemption"]

logger = logging.getLogger(__name__)

# Layers whose trunk and own cells are read as one at the same time: MLX builds somewhat ahead.
JOINED = 2


class Preemption:
    """Makes room for the next forward. `gave_way`: turns that wait to be queued again."""

    def __init__(self, memory: Memory) -> None:
        self.preemptions = 0
        self.gave_way: list[Request] = []
        # Whether a turn waits for room; and work space of the last chunk as it was planned.
        self.awaited = False
        self._planned = 0
        self._memory = memory
        self._running = memory.running

    def within_memory(self, chunks: Sequence[Chunk], *, fixed: bool) -> Sequence[Chunk]:
        """The chunks that fit, at least a short one: others give way for that. None are left if
        their own turn gave way; `fixed` chunks are not shortened."""
        self._planned = self._cost(chunks)
        if not self._memory.fits(self._planned):
            self._memory.drafts.clear()
        if len(chunks) > 1 and self._fits(lambda: self._cost(chunks)):
            self._memory.expect(self._cost(chunks))
            return chunks
        tokens, request = chunks[0].tokens, chunks[0].request
        space = self._memory.workspace[request.form.index]
        space = space.scored if request.scoring else space
        joined = JOINED * self._memory.rows.joined_bytes([request])
        least = space.chunk(min(tokens, space.least_chunk), 1, request.target) + joined
        while not self._fits(lambda: least) and self._give_way():
            if request not in self._running.prefills:
                return ()
        if not fixed:
            tokens = space.longest_chunk(tokens, request.cached, self._memory.room - joined)
        self._memory.expect(space.chunk(tokens, 1, request.cached + tokens) + joined)
        return [Chunk(request, tokens)]

    def _cost(self, chunks: Sequence[Chunk]) -> int:
        """Bytes of a forward that begins several rows of a common width: of its work space,
        and of what the rows are wider than was promised to each alone."""
        requests = [chunk.request for chunk in chunks]
        width, keys = max(chunk.tokens for chunk in chunks), max(r.target for r in requests)
        space = self._memory.workspace[requests[0].form.index].chunk(width, len(chunks), keys)
        return space + self._wider(requests) + JOINED * self._memory.rows.joined_bytes(requests)

    def _wider(self, requests: Sequence[Request]) -> int:
        """Bytes that rows which begin together are wider than was promised to each alone."""
        form, targets = requests[0].form, [request.target for request in requests]
        return sum(form.bytes_of(max(targets)) - form.bytes_of(target) for target in targets)

    def can_draw(self, chunks: Sequence[Chunk]) -> bool:
        """Whether the forward of `chunks` fits with the logits of all of its tokens, and of one
        more in each row: nobody leaves for it."""
        requests = [chunk.request for chunk in chunks]
        width = 1 + max(chunk.tokens for chunk in chunks)
        keys = 1 + max(request.target for request in requests)
        need = self._memory.workspace[requests[0].form.index].choice(width, len(chunks), keys)
        need += self._wider(requests) + JOINED * self._memory.rows.joined_bytes(requests)
        if not self._memory.fits(need):
            return False
        self._memory.expect(need)
        return True

    def can_spare(self, requests: Sequence[Request]) -> bool:
        """Whether the chunk that is about to run leaves enough for rows with room to decode."""
        more = sum(request.form.bytes_of(SPARE_TOKENS) for request in requests)
        return self._memory.fits(self._memory.expected + more + self._memory.rows.most_to_keep())

    def make_join(self, request: Request) -> bool:
        """Room for a prefilled row among the decoding ones; False if it gave way itself."""
        arena = self._running.common[request.form.index].arena
        batch = self._running.prefill_batch([request])
        extent = arena.table.extent(len(request.tokens) + 1)
        promised = self._memory.rows.own_bytes(request, extent)
        while request in self._running.prefills:
            if self._fits(lambda: arena.take_bytes(batch.arena, batch.row(request)) - promised):
                return True
            if not self._give_way():
                return True
        return False

    def make_choice(self, request: Request, batch: PrefillBatch) -> bool:
        """Room to score a choice; False if its turn gave way itself."""
        space, tokens = self._memory.workspace[request.form.index], request.longest_choice
        need = space.choice(tokens, len(batch.requests), request.cached + tokens)
        need += JOINED * self._memory.rows.joined_bytes(batch.requests)
        while request in self._running.prefills and not self._fits(lambda: need):
            if not self._give_way():
                break
        self._memory.expect(need)
        return request in self._running.prefills

    def make_growth(self, batch: DecodeBatch) -> bool:
        """Room for a batch's next step; whether any of its turns still runs."""
        while batch.requests and not self._growth_fits(batch):
            if not self._give_way():
                break
        batch.arena.floats = self._memory.plenty(batch.arena.float_bytes)
        return bool(batch.requests)

    @property
    def spares_drafts(self) -> bool:
        """Whether memory is not short: nobody gave way or waits for room, and what cannot be
        evicted leaves half of the budget. Drafts are the first to go."""
        return not (self.awaited or self.gave_way or self._memory.short)

    def can_check(self, batch: DecodeBatch, drafts: Mapping[Request, Sequence[int]]) -> bool:
        """Whether a forward that checks these `drafts` fits as things are, beyond what others ask:
        nobody leaves for it, and no chunk gets shorter."""
        if not self.spares_drafts:
            return False
        arena, memory = batch.arena, self._memory
        width = 1 + max(map(len, drafts.values()))
        space = memory.workspace[batch.requests[0].form.index].choice(
            width, len(batch), arena.table.extent(max(arena.table.lengths) + width)
        )
        read = sum(slab.trunk.end * len(slab.rows) for slab in arena.table.slabs)
        space += JOINED * arena.spec.joined_bytes * read
        blocks = memory.hot.blocks
        missing = sum(blocks.missing(r.agent_id, len(r.tokens) + 1 + width) for r in drafts)
        # The next chunk of a prompt runs when this forward has ended, in rows that grew.
        waits = any(request.remaining for request in self._running.prefills)
        beside = max(space, self._planned if waits else 0)
        beside += memory.rows.most_to_keep(width)
        if missing > blocks.free_blocks or not memory.fits(arena.step_bytes(width) + beside):
            return False
        for request in drafts:
            blocks.allocate(request.agent_id, len(request.tokens) + 1 + width)
        memory.expect(space)
        return True

    def keep(self, request: Request) -> None:
        """What a turn has computed becomes the agent's hot cache."""
        batch = self._running.batch_of(request)
        if batch is None:
            return
        row = batch.cut(request) if isinstance(batch, DecodeBatch) else batch.row(request)
        tokens = request.tokens[: request.cached]
        self._memory.hot.take(request.agent_id, batch.arena, row, tokens)

    def keep_closed(self, request: Request) -> None:
        """While there is plenty of room, what a prefill has computed becomes the agent's cache as
        soon as a piece is full: then others wait less for their next token when the turn ends."""
        memory, batch = self._memory, self._running.prefills.get(request)
        end = request.cached - request.cached % LONGEST_PIECE
        cache = memory.hot.get(request.agent_id)
        if batch is None or cache is None or end <= cache.end:
            return
        if batch.arena.spec.checkpointed or request.passing:
            return
        # Its row lives beside that copy, and another copy of it when it goes on to decode.
        more = 2 * request.form.bytes_of(request.target)
        if memory.fits(more + memory.rows.most_to_keep()):
            cache.borrowed = cache.borrowed or not cache.end
            memory.hot.take(request.agent_id, batch.arena, batch.row(request), request.tokens[:end])

    def make_room_to_keep(self, request: Request) -> bool:
        """Room for what `keep` copies."""
        return self._fits(lambda: self._memory.rows.bytes_to_keep(request, request.cached))

    def can_keep(self, request: Request, tokens: int) -> bool:
        """Whether a copy of so many of its `tokens` fits as things are: nobody leaves for it."""
        return self._memory.fits(self._memory.rows.bytes_to_keep(request, tokens))

    def _growth_fits(self, batch: DecodeBatch) -> bool:
        arena, memory = batch.arena, self._memory
        space = self._decode_space(batch)
        # One step ahead: a token is in flight that `tokens` does not have yet.
        memory.expect(space)
        if not all(memory.make_blocks(r.agent_id, len(r.tokens) + 2) for r in batch.requests):
            return False
        return self._fits(lambda: arena.step_bytes(1) + space + memory.rows.most_to_keep())

    def _decode_space(self, batch: DecodeBatch) -> int:
        """Bytes of work space of a batch's next step."""
        table, spec = batch.arena.table, batch.arena.spec
        longest = table.extent(max(table.lengths) + 1)
        shared = sum(map(table.shared, range(len(table.slabs))))
        workspace = self._memory.workspace[batch.requests[0].form.index]
        behind = [slab for slab in table.slabs if slab.trunk.end]
        read = sum(slab.trunk.end * len(slab.rows) for slab in behind)
        layers = batch.arena.layers
        if all(layer.reads_once(len(slab.rows)) for slab in behind for layer in layers):
            joined = JOINED * spec.joined_bytes * sum(slab.trunk.end for slab in behind)
            return workspace.decode(len(batch), longest, shared, read) + joined
        return workspace.decode(len(batch), longest, shared) + JOINED * spec.joined_bytes * read

    def _fits(self, need: Callable[[], int]) -> bool:
        """Whether a need fits, at last with lean arenas, which may make it smaller."""
        memory = self._memory
        return memory.make_room(need()) or memory.fits(need())

    def _give_way(self) -> bool:
        """The youngest turn of the lowest priority goes back into the queue; False if only one
        is left. What it has computed is kept if there is room, or computed again."""
        active = self._running.active
        if len(active) < 2:
            return False
        request = min(active, key=lambda r: (r.priority, -r.arrival))
        cache = self._memory.hot.touch(request.agent_id)
        borrowed = cache.borrowed or not cache.end
        if not request.forgotten and self.make_room_to_keep(request):
            try:
                self.keep(request)
            except Exception as error:
                if is_fatal(error):
                    raise
                logger.warning(
                    "what %r has computed is computed again: %s", request.agent_id, error
                )
            cache.borrowed = borrowed
        self._memory.leave(request)
        self.preemptions += 1
        self.gave_way.append(request)
        return True
