"""When memory is short: shorter chunks first, then idle agents leave, then a turn gives way.

A turn that gives way goes back into the queue and is resumed by itself; what it had decoded
stays in its request, so its tokens are the same as if nothing had happened. GPU thread.
"""

from collections.abc import Callable, Mapping, Sequence

from kvactors.core.arena.pieces import LONGEST_PIECE
from kvactors.core.cache.blocks import block_floor
from kvactors.core.engine.memory import Memory
from kvactors.core.engine.runner import SPARE_TOKENS, DecodeBatch, PrefillBatch
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.scheduler import Chunk

__all__ = ["Preemption"]


class Preemption:
    """Makes room for the next forward. `gave_way`: turns that wait to be queued again."""

    def __init__(self, memory: Memory) -> None:
        self.preemptions = 0
        self.gave_way: list[Request] = []
        self._memory = memory
        self._running = memory.running

    def within_memory(self, chunks: Sequence[Chunk], *, fixed: bool) -> Sequence[Chunk]:
        """The chunks that fit, at least a short one: others give way for that. None are left if
        their own turn gave way; `fixed` chunks are not shortened."""
        if len(chunks) > 1 and self._fits(lambda: self._cost(chunks)):
            self._memory.expect(self._cost(chunks))
            return chunks
        tokens, request = chunks[0].tokens, chunks[0].request
        space = self._memory.workspace[request.form.index]
        space = space.scored if request.scoring else space
        least = space.chunk(min(tokens, space.least_chunk), 1, request.target)
        while not self._fits(lambda: least) and self._give_way():
            if request not in self._running.prefills:
                return ()
        if not fixed:
            tokens = space.longest_chunk(tokens, request.cached, self._memory.room)
        self._memory.expect(space.chunk(tokens, 1, request.cached + tokens))
        return [Chunk(request, tokens)]

    def _cost(self, chunks: Sequence[Chunk]) -> int:
        """Bytes of a forward that begins several rows of a common width: of its work space,
        and of what the rows are wider than was promised to each alone."""
        form, targets = chunks[0].request.form, [chunk.request.target for chunk in chunks]
        widest = form.bytes_of(max(targets))
        wider = sum(widest - form.bytes_of(target) for target in targets)
        width = max(chunk.tokens for chunk in chunks)
        space = self._memory.workspace[form.index]
        return wider + space.chunk(width, len(chunks), max(targets))

    def can_spare(self, requests: Sequence[Request]) -> bool:
        """Whether the chunk that is about to run leaves enough for rows with room to decode."""
        more = sum(request.form.bytes_of(SPARE_TOKENS) for request in requests)
        return self._memory.fits(self._memory.expected + more)

    def make_join(self, request: Request) -> bool:
        """Room for a prefilled row among the decoding ones; False if it gave way itself."""
        arena = self._running.common[request.form.index].arena
        batch = self._running.prefill_batch([request])
        extent = arena.table.extent(len(request.tokens) + 1)
        promised = request.form.bytes_of(extent)
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

    def can_check(self, batch: DecodeBatch, drafts: Mapping[Request, Sequence[int]]) -> bool:
        """Whether a forward that checks these `drafts` fits as things are: nobody leaves for it."""
        arena, memory = batch.arena, self._memory
        width = 1 + max(map(len, drafts.values()))
        space = memory.workspace[batch.requests[0].form.index].choice(
            width, len(batch), arena.table.extent(max(arena.table.lengths) + width)
        )
        blocks = memory.hot.blocks
        missing = sum(blocks.missing(r.agent_id, len(r.tokens) + 1 + width) for r in drafts)
        if missing > blocks.free_blocks or not memory.fits(arena.step_bytes(width) + space):
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
        if memory.fits(2 * request.form.bytes_of(request.target)):
            cache.borrowed = cache.borrowed or not cache.end
            memory.hot.take(request.agent_id, batch.arena, batch.row(request), request.tokens[:end])

    def make_room_to_keep(self, request: Request) -> bool:
        """Room for what `keep` copies."""
        cache = self._memory.hot.get(request.agent_id)
        have = block_floor(cache.end) if cache else 0
        kept, spec = max(have, request.cached), request.form.spec
        # Of what is there only tokens stay as they are: a checkpoint is a new one. As much again
        # lives while layers are stacked.
        return self._fits(lambda: 2 * (spec.bytes_of(kept) - spec.bytes_per_token * have))

    def _growth_fits(self, batch: DecodeBatch) -> bool:
        arena, memory = batch.arena, self._memory
        longest = arena.table.extent(max(arena.table.lengths) + 1)
        shared = sum(map(arena.table.shared, range(len(arena.table.slabs))))
        workspace = memory.workspace[batch.requests[0].form.index]
        space = workspace.decode(len(batch), longest, shared)
        # One step ahead: a token is in flight that `tokens` does not have yet.
        memory.expect(space)
        return all(
            memory.make_blocks(r.agent_id, len(r.tokens) + 2) for r in batch.requests
        ) and self._fits(lambda: arena.step_bytes(1) + space)

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
        if self.make_room_to_keep(request):
            self.keep(request)
            cache.borrowed = borrowed
        self._memory.leave(request)
        self.preemptions += 1
        self.gave_way.append(request)
        return True
