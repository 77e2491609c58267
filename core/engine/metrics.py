"""Runs the engine's forwards: counts their tokens, and tells of each if anybody listens."""

from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from kvactors.core.schedule.request import Request
from kvactors.core.schedule.scheduler import Chunk
from kvactors.core.schedule.speculation.acceptance import OWN, SOURCES
from kvactors.core.trace import DecodeStep, Fault, PrefillStep, Tracer, TurnStarted

if TYPE_CHECKING:
    from kvactors.core.engine.runner import DecodeBatch, PrefillBatch
    from kvactors.core.schedule.flight import Decoded

__all__ = ["EngineMetrics"]

# Of each source that drafted: its name, and its tokens that were checked, and right.
Checked = tuple[tuple[str, int, int], ...]

_COUNTED = ("prefilled_tokens", "generated_tokens", "drafted_tokens", "accepted_tokens")
_DRAFTS = tuple(f"{source}_{what}_tokens" for source in SOURCES for what in ("drafted", "accepted"))


class EngineMetrics:
    """`counts`: tokens prefilled and generated so far; and those that were drafted, and right, in
    all and of each source. GPU thread only."""

    def __init__(self, tracer: Tracer) -> None:
        self.counts = dict.fromkeys((*_COUNTED, *_DRAFTS), 0)
        self._tracer = tracer

    def prefill(
        self, batch: "PrefillBatch", chunks: Sequence[Chunk], *, draw: bool
    ) -> "list[Decoded]":
        """Cache the next tokens of every request of a `batch`, as its `chunks` say, and `draw` what
        follows if that is asked for: the tokens."""
        began = perf_counter() if self._tracer.steps else 0.0
        decoded = batch.run(chunks, draw=draw)
        self.counts["prefilled_tokens"] += sum(chunk.tokens for chunk in chunks)
        if began:
            drew = tuple(item.request.agent_id for item in decoded if item.error is None)
            parts = tuple(
                (c.request.agent_id, c.request.cached - c.tokens - draw, c.request.cached)
                for c in chunks
            )
            self._tracer.tell(PrefillStep(began, perf_counter(), parts, drew))
        return decoded

    def decode(
        self,
        batch: "DecodeBatch",
        drafts: Mapping[Request, Sequence[int]],
        sources: Mapping[Request, str],
        *,
        launch: bool,
    ) -> "list[Decoded]":
        """Check the `drafts` of a batch, which are of these `sources`, if there are any; or launch
        the next step, if asked to, then read the one before it."""
        began, rows = perf_counter() if self._tracer.steps else 0.0, len(batch)
        decoded = batch.verify(drafts) if drafts else batch.step(launch=launch)
        told = [d.request for d in decoded if d.error is None]
        self._decoded(began, rows, told, self._checked(drafts, sources, decoded))
        return decoded

    def _checked(
        self,
        drafts: Mapping[Request, Sequence[int]],
        sources: Mapping[Request, str],
        decoded: "Sequence[Decoded]",
    ) -> Checked:
        """Count what was drafted, and of that accepted: by source."""
        if not drafts:
            return ()
        drafted, accepted = Counter[str](), Counter[str]()
        taken = Counter(id(item.request) for item in decoded)
        for request, draft in drafts.items():
            source = sources.get(request, OWN)
            drafted[source] += len(draft)
            accepted[source] += taken[id(request)] - 1
        for source, count in drafted.items():
            self.counts["drafted_tokens"] += count
            self.counts["accepted_tokens"] += accepted[source]
            self.counts[f"{source}_drafted_tokens"] += count
            self.counts[f"{source}_accepted_tokens"] += accepted[source]
        return tuple((source, drafted[source], accepted[source]) for source in drafted)

    def choose(self, batch: "PrefillBatch", request: Request) -> bool:
        """Score the request's next choice, or, when all are, draw one; whether it was drawn."""
        began = perf_counter() if self._tracer.steps else 0.0
        if len(request.scores) < len(request.choices):
            batch.score_choice(request)
            self._decoded(began, 1, (), ())
            return False
        batch.take_choice(request)
        self.generated(request.decoded)
        self._decoded(began, 1, [request] * request.decoded, ())
        return True

    def generated(self, tokens: int) -> None:
        """So many tokens became a turn's: not those that were right behind its end."""
        self.counts["generated_tokens"] += tokens

    def started(self, request: Request) -> None:
        """A turn was admitted."""
        if self._tracer.on:
            state, kept = request.cache_state, request.kept
            started = TurnStarted(perf_counter(), request.agent_id, request.serial, state, kept)
            self._tracer.tell(started)

    def failed(self, suspects: Sequence[Request], error: Exception) -> None:
        """A step of these failed."""
        if self._tracer.on:
            alone = suspects[0].agent_id if len(suspects) == 1 else ""
            self._tracer.tell(Fault(perf_counter(), "step", alone, type(error).__name__))

    def _decoded(
        self, began: float, rows: int, requests: Sequence[Request], checked: Checked
    ) -> None:
        if began:
            agents = tuple(request.agent_id for request in requests)
            drafted = sum(drafted for _, drafted, _ in checked)
            accepted = sum(accepted for _, _, accepted in checked)
            step = DecodeStep(began, perf_counter(), rows, agents, drafted, accepted, checked)
            self._tracer.tell(step)
