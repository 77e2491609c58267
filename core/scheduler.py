"""The scheduler: which prefill chunks and which decode rows run next. Pure, no clock, no MLX.

Continuous batching with chunked prefill (seed 001, 3.4): decode and prefill share time.
While anybody decodes, a chunk is as long as the target inter-token latency allows, from 32
tokens up, and between two chunks run as many decode steps as that target asks for; where a
step alone takes about as long, a chunk may take `patience` steps, or nothing would get on. Where
nobody reads the tokens as they come, a short prompt goes first: its row then decodes beside the
others, which costs less than apart (bench/LOG.md). While nobody decodes, chunks grow from 256 to
the seed's table (seed 000, 3.4). Times come from measured steps, told through `record_prefill`
and `record_decode`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from kvactors.core.request import Request

__all__ = ["Chunk", "Plan", "Scheduler", "SchedulerConfig"]

# Cached tokens below which a chunk may have so many tokens (seed 000, 3.4).
_CHUNK_TABLE = ((2_000, 4096), (8_000, 2048), (20_000, 1024))
_LONGEST_CHUNK_BEYOND = 512
_BLOCK = 256


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """`target_latency` in seconds between two tokens of a decoding agent while another
    prefills, or `patience` of its steps for the prefill where those are longer;
    `unwatched_latency` those that a prompt may take at once where nobody reads the tokens as
    they come; `max_wait` plans that may pass a prefill over before it goes first.
    `reproducible`: chunks end at multiples of the block, and what a turn had decoded before it
    gave way is fed token by token. `checkpointed`: they are no longer than a block. With either
    they stop where a shared beginning ends."""

    target_latency: float = 0.1
    unwatched_latency: float = 1.0
    patience: float = 2.5
    least_chunk: int = 32
    first_chunk: int = 256
    max_wait: int = 8
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
    _token_seconds: _Pace = field(default_factory=_Pace)
    _decode_seconds: _Pace = field(default_factory=_Pace)
    _owed: int = 0
    _last_chunk: int = 0
    _latency: float = 0.0

    def plan(self, prefilling: Sequence[Request], decoding: Sequence[Request]) -> Plan:
        """The next tick, for requests with prompt left to prefill and those that decode."""
        decode = bool(decoding)
        if not prefilling or (decode and self._owed > 0):
            return Plan(decode=decode)
        ordered = sorted(prefilling, key=self._rank)
        first = ordered[0]
        self._latency = self._latency_beside(first, decoding)
        size = self.chunk_size(first.cached, self._due(first), decode)
        chunks = [Chunk(first, size)]
        if size == first.remaining and _may_share(first) and not self.config.reproducible:
            # What a longer prompt would get now is there for several short ones; more would
            # keep the first waiting.
            budget = self.chunk_size(first.cached, self.config.first_chunk, decode)
            alike = [other for other in ordered[1:] if other.in_float == first.in_float]
            chunks += self._pack(alike, size, budget)
        chosen = {id(chunk.request) for chunk in chunks}
        for request in ordered:
            request.passed_over = 0 if id(request) in chosen else request.passed_over + 1
        self._last_chunk = max(chunk.tokens for chunk in chunks) * len(chunks)
        return Plan(tuple(chunks), decode)

    def chunk_size(self, cached: int, remaining: int, decoding: bool) -> int:
        """Tokens of the next chunk of a prompt with `cached` tokens done, `remaining` to do."""
        if self.config.reproducible:
            return min(remaining, _BLOCK - cached % _BLOCK)
        longest = next(
            (size for below, size in _CHUNK_TABLE if cached < below), _LONGEST_CHUNK_BEYOND
        )
        if decoding:
            size = self._affordable()
        else:
            size = max(self.config.first_chunk, 2 * self._last_chunk)
        if self.config.checkpointed:
            size = min(size, _BLOCK)
        return min(remaining, longest, size)

    def record_prefill(self, tokens: int, seconds: float, decoding: bool) -> None:
        """A chunk of `tokens` tokens (padding included) took `seconds`."""
        self._token_seconds.add(seconds / max(1, tokens))
        if not decoding:
            self._owed = 0
            return
        self._owed = max(1, ceil(seconds / self._spare))

    def record_decode(self, seconds: float) -> None:
        """A decode step took `seconds`."""
        self._decode_seconds.add(seconds)
        self._owed = max(0, self._owed - 1)

    def prefill_ended(self) -> None:
        """Nothing is prefilling: the next chunk grows from the start again."""
        self._last_chunk = 0
        self._owed = 0

    @property
    def _spare(self) -> float:
        """Seconds of prefill between two decode steps."""
        step = self._decode_seconds.value or 0.0
        return max(self._latency - step, self.config.patience * step)

    def _latency_beside(self, first: Request, decoding: Sequence[Request]) -> float:
        """Seconds between two decode steps while the first prompt is prefilled."""
        target, unwatched = self.config.target_latency, self.config.unwatched_latency
        pace = self._token_seconds.value
        if not pace or first.remaining * pace > unwatched or any(r.stream for r in decoding):
            return target
        return max(target, unwatched)

    def _due(self, request: Request) -> int:
        """Tokens to the next place where a chunk must end."""
        config, cached = self.config, request.cached
        fixed = config.checkpointed or config.reproducible
        if fixed and cached < request.shared < request.target:
            return request.shared - cached
        if config.reproducible and request.decoded:
            # A turn that begins again: what it had decoded is fed as it was then.
            return max(1, request.prompt - 1 - cached)
        return request.remaining

    def _affordable(self) -> int:
        """Tokens that fit between two decode steps, in steps of the least chunk, which always
        does."""
        least = self.config.least_chunk
        if not self._token_seconds.value:
            return least
        return max(least, int(self._spare / self._token_seconds.value) // least * least)

    def _rank(self, request: Request) -> tuple[bool, int, int, int]:
        waited_enough = request.passed_over >= self.config.max_wait
        remaining = request.arrival if waited_enough else request.remaining
        return (not waited_enough, -request.priority, remaining, request.arrival)

    def _pack(self, others: Sequence[Request], size: int, budget: int) -> list[Chunk]:
        """Further short prompts for the same forward, padded to the longest of them."""
        packed: list[Chunk] = []
        width = size
        for request in others:
            wider = max(width, request.remaining)
            if _may_share(request) and wider * (len(packed) + 2) <= budget:
                packed.append(Chunk(request, request.remaining))
                width = wider
        return packed


def _may_share(request: Request) -> bool:
    """Whether a request may begin in a batch with others: one that has begun has its own."""
    return request.cached == request.kept and not request.isolated and not request.generated
