"""The scheduler: which prefill chunks and which decode rows run next. Pure, no clock, no MLX.

Continuous batching with chunked prefill [paper, 3.4]: decode and prefill share time.
While anybody decodes, a chunk is as long as the target inter-token latency allows, from 8
tokens up, and between two chunks run as many decode steps as that target asks for; where a
step alone takes about as long, a chunk may take `patience` steps, or nothing would get on. Behind
so many tokens that 8 take longer than the target, it is 32: shorter ones would take the most of
their time for what any chunk takes.
Where nobody reads tokens as they come, nor is more urgent, a short prompt goes first: its row
then decodes beside the others, which costs less than apart (bench/LOG.md). Who is less urgent than
a prompt waits for it. While nobody decodes,
chunks grow from 256 to the table of [write-up, 3.4]. Times come from measured steps, told
through `record_prefill` and `record_decode`.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvactors.core.schedule.request import Request

__all__ = ["Chunk", "Plan", "Scheduler", "SchedulerConfig"]

# Cached tokens below which a chunk may have so many tokens [write-up, 3.4].
_CHUNK_TABLE = ((2_000, 4096), (8_000, 2048), (20_000, 1024))
_LONGEST_CHUNK_BEYOND = 512
# Cached tokens from which on short prompts gain little from sharing a forward (bench/LOG.md).
_DEEP = 2_000
_BLOCK = 256
# Seconds between two tokens where nobody said how many; and steps of those who read them.
_LATENCY, _SMOOTH = 0.1, 5.0
# Seconds that a short prompt, or one that was passed over for long, may take at once where nobody
# reads the tokens as they come; and steps that a prefill may take where those are longer.
_UNWATCHED_LATENCY, _PATIENCE = 1.0, 2.5
# Tokens of a chunk: as many at least where that keeps the latency, else, and where it is not known
# what a token takes, the second; and of the first one where nobody decodes.
_SHORTEST_CHUNK, _LEAST_CHUNK, _FIRST_CHUNK = 8, 32, 256
# Chunks beside decoding rows have multiples of so many tokens; and any chunk takes about as long
# as so many tokens more, since what is cached becomes floats for all of them (bench/LOG.md).
_GRAIN, _OVERHEAD = 8, 12
# Tokens of a forward of a prompt whose logits may all be computed, for the last one's.
LOGITS = 32


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """`target_latency` in seconds between two tokens of a decoding agent while another
    prefills (None: a tenth of one, or five of its steps where somebody reads them as they come and
    those are shorter); `max_wait` plans that pass a prefill over raise its priority by one.
    No chunk has more than `longest_chunk` tokens: longer ones are no faster on this device.
    `reproducible`: chunks end at multiples of the block, and what a turn had decoded before it
    gave way is fed token by token. `checkpointed`: they are no longer than a block. With either
    they stop where a shared beginning ends."""

    target_latency: float | None = None
    max_wait: int = 8
    longest_chunk: int = 4096
    reproducible: bool = False
    checkpointed: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next `tokens` tokens of one request's prompt."""

    request: Request
    tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What runs in this tick: chunks that share one forward, then one decode step or none."""

    prefill: tuple[Chunk, ...] = ()
    decode: bool = False


@dataclass(slots=True)
class _Pace:
    """A running estimate of seconds per unit, quick to follow, slow to panic."""

    value: float | None = None

    def add(self, sample: float) -> None:
        self.value = sample if self.value is None else 0.7 * self.value + 0.3 * sample


@dataclass(slots=True)
class Scheduler:
    """State: measured paces, decode steps owed before the next chunk, growth of chunks."""

    config: SchedulerConfig = field(default_factory=SchedulerConfig)
    # Seconds a token of prefill, those of any chunk (_OVERHEAD) among them, by the longest chunk:
    # behind more tokens one takes longer.
    _paces: dict[int, _Pace] = field(default_factory=lambda: defaultdict(_Pace))
    _decode_seconds: _Pace = field(default_factory=_Pace)
    _owed: int = 0
    _last_chunk: int = 0
    # Of the last plan: the pace of its first prompt, and seconds between two decode steps.
    _pace: _Pace = field(default_factory=_Pace)
    _latency: float = 0.0

    def plan(self, prefilling: Sequence[Request], decoding: Sequence[Request]) -> Plan:
        """The next tick, for requests with prompt left to prefill and those that decode."""
        decode = bool(decoding)
        if not prefilling:
            return Plan(decode=decode)
        ordered = sorted(prefilling, key=self._rank)
        first = ordered[0]
        beside = [request for request in decoding if request.priority >= first.priority]
        if beside and self._owed > 0:
            return Plan(decode=decode)
        self._pace = self._paces[_longest(first.cached)]
        self._latency = self._latency_beside(first, beside)
        size = self._chunk_size(first.cached, self._due(first), decoding=decode)
        chunks = [Chunk(first, size)]
        if size == first.remaining and _may_share(first) and not self.config.reproducible:
            # What a longer prompt would get now is there for several short ones; more would
            # keep the first waiting.
            budget = self._chunk_size(first.cached, _FIRST_CHUNK, decoding=decode)
            if self._pace.value:
                # Behind much that is cached, each row's keys cost more than a launch saves.
                deep = first.cached >= _DEEP
                usual = self.config.target_latency or _LATENCY
                budget = min(budget, self._affordable(usual if deep else self._latency))
            # Who is less urgent keeps nobody waiting.
            alike = [
                other
                for other in ordered[1:]
                if other.form is first.form and other.priority >= first.priority
            ]
            chunks += self._pack(first, alike, budget)
        chosen = {id(chunk.request) for chunk in chunks}
        for request in ordered:
            request.passed_over = 0 if id(request) in chosen else request.passed_over + 1
        self._last_chunk = max(chunk.tokens for chunk in chunks) * len(chunks)
        return Plan(tuple(chunks), decode)

    def _chunk_size(self, cached: int, remaining: int, *, decoding: bool) -> int:
        """Tokens of the next chunk of a prompt with `cached` tokens done, `remaining` to do."""
        if self.config.reproducible:
            return min(remaining, _BLOCK - cached % _BLOCK)
        if decoding:
            size = self._affordable(self._latency)
        else:
            size = max(_FIRST_CHUNK, 2 * self._last_chunk)
        if self.config.checkpointed:
            size = min(size, _BLOCK)
        elif decoding and remaining <= size + size // 8:
            # The rest of a prompt would take as long by itself as in this chunk.
            size = remaining
        return min(remaining, _longest(cached), self.config.longest_chunk, size)

    def may_draw(self, chunk: Chunk) -> bool:
        """Whether the first token of a turn may come of the forward of its last chunk: one decode
        step less. Not where steps of one token have bits of their own that must stay."""
        request, spec = chunk.request, chunk.request.form.spec
        plain = request.generate and not (request.choices or request.scoring or request.suspect)
        free = not (self.config.reproducible or spec.fixed_chunks)
        return plain and free and chunk.tokens == request.remaining < LOGITS

    def record_prefill(self, tokens: int, seconds: float, *, decoding: bool) -> None:
        """A chunk of `tokens` tokens (padding included) took `seconds`, while others were
        `decoding` or not."""
        # Of fewer tokens little can be told.
        if tokens >= _SHORTEST_CHUNK or self._pace.value is None:
            self._pace.add(seconds / (tokens + _OVERHEAD))
        self._owed = max(1, round(seconds / self._spare(self._latency))) if decoding else 0

    def record_decode(self, seconds: float) -> None:
        """A decode step took `seconds`; 0 where it is not known what it took, since it was only
        launched."""
        if seconds:
            self._decode_seconds.add(seconds)
        self._owed = max(0, self._owed - 1)

    def prefill_ended(self) -> None:
        """Nothing is prefilling: the next chunk grows from the start again."""
        self._last_chunk = 0

    def _spare(self, latency: float) -> float:
        """Seconds of prefill between two decode steps that may be so far apart."""
        step = self._decode_seconds.value or 0.0
        return max(latency - step, _PATIENCE * step)

    def _latency_beside(self, first: Request, decoding: Sequence[Request]) -> float:
        """Seconds between two decode steps while the first prompt is prefilled, for those that are
        no less urgent."""
        unwatched = _UNWATCHED_LATENCY
        target = self.config.target_latency or _LATENCY
        step = self._decode_seconds.value
        if not decoding:
            return max(target, unwatched)
        if any(request.stream for request in decoding):
            if self.config.target_latency or not step:
                return target
            return min(target, _SMOOTH * step)
        if any(request.priority > first.priority for request in decoding):
            return target
        short = first.remaining <= self._affordable(unwatched)
        return max(target, unwatched) if short or self._waited_enough(first) else target

    def _due(self, request: Request) -> int:
        """Tokens to the next place where a chunk must end. One whose logits are all wanted is no
        longer than a block."""
        due = self._next_end(request)
        return min(due, _BLOCK) if request.scoring else due

    def _next_end(self, request: Request) -> int:
        config, cached = self.config, request.cached
        fixed = config.checkpointed or config.reproducible
        if fixed and cached < request.shared < request.target:
            return request.shared - cached
        if config.reproducible and request.decoded:
            # A turn that begins again: what it had decoded is fed as it was then.
            return max(1, request.prompt - 1 - cached)
        return request.remaining

    def _affordable(self, latency: float) -> int:
        """Tokens of a chunk that fits between two decode steps so far apart. Where not even the
        shortest does, nor before the next step, it is better to get on: the least chunk."""
        shortest, pace = _SHORTEST_CHUNK, self._pace.value
        if not pace:
            return _LEAST_CHUNK
        fits = int(self._spare(latency) / pace) - _OVERHEAD
        if fits < shortest and (shortest + _OVERHEAD) * pace > latency:
            return _LEAST_CHUNK
        return max(shortest, fits // _GRAIN * _GRAIN)

    def _waited_enough(self, request: Request) -> bool:
        return request.passed_over >= self.config.max_wait

    def _rank(self, request: Request) -> tuple[int, bool, int, int]:
        """The lowest goes first. Who waits rises by a priority for each `max_wait` plans."""
        level = request.priority + request.passed_over // self.config.max_wait
        fresh = not self._waited_enough(request)
        return (-level, fresh, request.remaining if fresh else request.arrival, request.arrival)

    def _pack(self, first: Request, others: Sequence[Request], budget: int) -> list[Chunk]:
        """Further short prompts for the forward that has the rest of the `first`, padded to the
        longest of them: none may be longer than a model's positions."""
        packed: list[Chunk] = []
        width, cached = first.remaining, first.cached
        for request in others:
            wider, deeper = max(width, request.remaining), max(cached, request.cached)
            fits = deeper + wider < first.form.spec.context
            if _may_share(request) and fits and wider * (len(packed) + 2) <= budget:
                packed.append(Chunk(request, request.remaining))
                width, cached = wider, deeper
        return packed


def _longest(cached: int) -> int:
    """Tokens of the longest chunk behind so many cached ones."""
    return next((size for below, size in _CHUNK_TABLE if cached < below), _LONGEST_CHUNK_BEYOND)


def _may_share(request: Request) -> bool:
    """Whether a request may begin in a batch with others: one that has begun has its own."""
    alone = request.suspect or request.scoring
    return request.cached == request.kept and not alone and not request.generated
