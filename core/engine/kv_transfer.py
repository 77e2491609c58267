"""KV on its way from the store and to it. GPU thread only.

What is asked of the store is adopted as far as its token hashes belong to the agent's own tokens.
Agents whose segments are one file on disk have one piece in memory again: what is read is compared
with what is there of the same tokens.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from weakref import WeakValueDictionary

from kvactors.core.arena.pieces import Piece
from kvactors.core.arena.wire import from_raw, misfit, same_bytes, to_raw
from kvactors.core.cache.segment import Segment
from kvactors.core.cache.spec import KVForm, ModelCacheSpec
from kvactors.core.conversation.hashing import prefix_hashes
from kvactors.core.engine.memory import Memory
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.request import Request

__all__ = ["KVTransfer"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Read:
    """One agent's KV that was asked of the store `at` some time: for a waiting turn, or ahead of
    one, and then `tokens` are those that the agent remembers. `answered` with nothing that fits."""

    at: float
    tokens: list[int] | None = None
    answered: bool = False


class KVTransfer:
    """Which agents' KV is being read, and what became of what was written. `loaded` says in which
    forms, `memory` is where it becomes hot, `clock` gives seconds; `stored`: there is a store."""

    def __init__(
        self, loaded: LoadedModel, memory: Memory, clock: Callable[[], float], *, stored: bool
    ) -> None:
        self._loaded = loaded
        self._memory = memory
        self._clock = clock
        self._stored = stored
        self._reads: dict[str, Read] = {}
        # Of each agent, what the store was given and has not written, turn by turn: in bytes, too.
        self._writing: defaultdict[str, list[tuple[int, list[Piece]]]] = defaultdict(list)
        self._layouts = {form.spec: form.layout for form in loaded.forms}
        # What the store has, as long as somebody holds it.
        self._known: WeakValueDictionary[tuple[int, int, str], Piece] = WeakValueDictionary()

    # -- from the store ----------------------------------------------------------------

    def reading(self, agent_id: str) -> bool:
        """Whether the store was asked for an agent's KV and has not answered."""
        read = self._reads.get(agent_id)
        return read is not None and not read.answered

    def must_ask(self, request: Request) -> bool:
        """Whether the store may know KV of this agent that is not in memory."""
        # What was restored may have been evicted again before the turn could start.
        known = request.agent_id in self._memory.hot or request.agent_id in self._reads
        return self._stored and request.past > 0 and not known

    def must_ask_for_more(self, request: Request) -> bool:
        """Whether the store may know more than its system prompt, which others may have."""
        return request.past > request.shared and self.must_ask(request)

    def ask(self, agent_id: str, nbytes: int, tokens: list[int] | None = None) -> None:
        """Note that the store is asked for the KV of `agent_id`, for which `nbytes` are promised;
        ahead of a turn, of these `tokens`."""
        self._reads[agent_id] = Read(self._clock(), tokens)
        self._memory.promised[agent_id] = nbytes

    def prefetch(self, agent_id: str, tokens: list[int]) -> bool:
        """Whether an agent's KV is to be read ahead of its next turn: it is not in memory, and
        there is room."""
        memory = self._memory
        if not self._stored or agent_id in memory.hot or self.reading(agent_id):
            return False
        nbytes = self._loaded.form_of(len(tokens)).bytes_of(len(tokens))
        need = nbytes + memory.promised_to_others(agent_id)
        if need > memory.rows.leave(memory.budget) or not memory.make_room(need, [agent_id]):
            return False
        if not memory.make_blocks(agent_id, len(tokens), [agent_id]):
            return False
        self.ask(agent_id, nbytes, tokens)
        return True

    def provide(self, agent_id: str, stored: Sequence[Segment], request: Request | None) -> None:
        """The KV that the store had for `agent_id`, `stored`, maybe none; `request` waits for it,
        if any."""
        if not self.reading(agent_id):
            return
        read = self._reads.pop(agent_id)
        if request is not None:
            past = request.tokens[: request.past]
            if not self._adopt(agent_id, past, stored, request.form):
                read.answered = True
                self._reads[agent_id] = read
            elif not request.preempted:
                request.cache_state = "warm"
            request.restore_seconds = self._clock() - read.at
            return
        if read.tokens is not None:
            form = self._loaded.form_of(len(read.tokens))
            self._adopt(agent_id, read.tokens, stored, form)
            self._memory.hot.settle(agent_id)
        self.withdraw(agent_id)

    def withdraw(self, agent_id: str) -> None:
        """Nobody waits for this agent's KV any more: its turn has begun, or was cancelled."""
        self._reads.pop(agent_id, None)
        self._memory.promised.pop(agent_id, None)

    def _adopt(
        self, agent_id: str, known: list[int], stored: Sequence[Segment], form: KVForm
    ) -> bool:
        """Make stored KV hot, as far as it belongs to the agent's own beginning and has the form
        that its turn needs; nothing of it if there is no room for it any more."""
        if not self._memory.make_room(sum(part.nbytes for part in stored), [agent_id]):
            return False
        pieces: list[Piece] = []
        for part, digest in zip(stored, prefix_hashes(known, (p.end for p in stored)), strict=True):
            end = pieces[-1].end if pieces else 0
            if part.start != end or part.end > len(known) or part.tokens_hash != digest:
                break
            if part.layout != self._layouts[form.spec]:
                break
            if fault := misfit(part.tensors, part.start, part.end, form.spec):
                logger.warning("stored KV of %r is left out: %s", agent_id, fault)
                break
            pieces.append(self._restored(part, form.spec))
        while pieces and not pieces[-1].whole:
            pieces.pop()
        if not pieces:
            return False
        cache = self._memory.hot.adopt(agent_id, pieces, known[: pieces[-1].end])
        self._memory.hot.unite(agent_id)
        cache.saved_ends = [piece.end for piece in pieces]
        cache.last_used = self._clock()
        return True

    def _restored(self, part: Segment, spec: ModelCacheSpec) -> Piece:
        """The piece that a stored part is; another agent's, if agents share memory and it has the
        same bytes."""
        known = self._known.get(_key(part)) if self._memory.share else None
        if known is not None and known.spec is spec and same_bytes(known, part.tensors):
            return known
        piece = from_raw(part.tensors, part.start, part.end, spec)
        self._known[_key(part)] = piece
        return piece

    # -- to the store ------------------------------------------------------------------

    def export(self, request: Request) -> tuple[Segment, ...]:
        """The KV of a finished turn that the store does not have, as bytes."""
        cache = self._memory.hot.get(request.agent_id)
        if not self._stored or cache is None:
            return ()
        ranges = cache.ranges_to_save()
        hashes = prefix_hashes(cache.tokens, (end for _, end in ranges))
        pieces = cache.slices(ranges)
        exported = tuple(
            Segment(piece.start, piece.end, digest, self._layouts[piece.spec], to_raw(piece))
            for piece, digest in zip(pieces, hashes, strict=True)
        )
        cache.mark_saved(ranges)
        for part, piece in zip(exported, pieces, strict=True):
            self._memory.hot.held.lend(piece)
            self._known[_key(part)] = piece
        nbytes = sum(part.nbytes for part in exported)
        if nbytes:
            self._writing[request.agent_id].append((nbytes, pieces))
        cache.unwritten += nbytes
        self._memory.backlog += nbytes
        return exported

    def saved(self, agent_id: str, nbytes: int, limit: int | None) -> None:
        """So many bytes of KV of `agent_id`, `nbytes`, no longer wait for the store, which has no
        more than `limit` tokens of it."""
        self._memory.backlog -= nbytes
        for piece in self._written(agent_id, nbytes):
            self._memory.hot.held.take_back(piece)
        cache = self._memory.hot.get(agent_id)
        if cache is not None:
            cache.unwritten = max(0, cache.unwritten - nbytes)
            if limit is not None:
                cache.limit_saved(limit)

    def _written(self, agent_id: str, nbytes: int) -> list[Piece]:
        """What is lent to the store no more: of turns that follow each other and are so many bytes.
        A turn that is given up may leave before one that is still to be written."""
        writing = self._writing.pop(agent_id, [])
        for first in range(len(writing)):
            sums = accumulate(size for size, _ in writing[first:])
            count = next((n for n, total in enumerate(sums, 1) if total >= nbytes), 0)
            turns = writing[first : first + count]
            if nbytes and sum(size for size, _ in turns) == nbytes:
                del writing[first : first + count]
                break
        else:
            turns = []
        if writing:
            self._writing[agent_id] = writing
        return [piece for _, pieces in turns for piece in pieces]


def _key(part: Segment) -> tuple[int, int, str]:
    return part.start, part.end, part.tokens_hash
