"""Spans and metrics for OpenTelemetry, through its API package alone (`kvactors[otel]`).

A listener to the events of turns, on the threads where they end: what it costs there is what the
provider costs that the program has set up, next to nothing without one. Names follow the
semantic conventions for generative AI where these have any; nothing says what was said.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry import context, metrics, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from kvactors.core.trace import TraceEvent, TurnEnded, TurnQueued, TurnStarted

__all__ = ["Telemetry"]

NANO = 1e9
OPERATION = "invoke_agent"


@dataclass(slots=True)
class _Turn:
    """A turn that has not ended. `around`: the context in which it was asked."""

    asked: float
    around: Any
    counted: dict[str, Any]  # as what it waits: another model may be loaded before it begins
    waits: bool = True


class Telemetry:
    """Call it with events. `model` names the model that is loaded, `hot_bytes` reads a gauge.
    `tracer_provider` and `meter_provider`: those that the program set up, unless given."""

    def __init__(
        self,
        model: Callable[[], str],
        hot_bytes: Callable[[], int],
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._model = model
        self._hot_bytes = hot_bytes
        self._turns: dict[int, _Turn] = {}
        self._epoch = time.time() - time.perf_counter()
        self._tracer = trace.get_tracer("kvactors", tracer_provider=tracer_provider)
        meter = metrics.get_meter("kvactors", meter_provider=meter_provider)
        self._tokens = meter.create_histogram(
            "gen_ai.client.token.usage", "{token}", "Tokens of a turn, by gen_ai.token.type."
        )
        self._reused = meter.create_counter(
            "kvactors.tokens.reused", "{token}", "Tokens whose KV was there already."
        )
        self._duration = meter.create_histogram(
            "gen_ai.server.request.duration", "s", "From the ask to the reply."
        )
        self._first = meter.create_histogram(
            "gen_ai.server.time_to_first_token", "s", "From the ask to the first token."
        )
        self._queue = meter.create_up_down_counter(
            "kvactors.queue.depth", "{turn}", "Turns that were asked for and have not begun."
        )
        self._hot = meter.create_gauge(
            "kvactors.kv.hot", "By", "KV of idle agents in memory, when a turn ends."
        )

    def __call__(self, event: TraceEvent) -> None:
        """Take an event of a turn; any thread."""
        if isinstance(event, TurnQueued):
            counted = self._attributes()
            self._turns[event.serial] = _Turn(event.at, context.get_current(), counted)
            self._queue.add(1, counted)
        elif isinstance(event, TurnStarted):
            self._begun(self._turns.get(event.serial))
        elif isinstance(event, TurnEnded):
            turn = self._turns.pop(event.serial, None)
            self._begun(turn)
            if turn is not None and (event.failed or event.usage):
                self._measure(event)
                self._show(event, turn)

    def _attributes(self) -> dict[str, Any]:
        return {
            "gen_ai.operation.name": OPERATION,
            "gen_ai.provider.name": "kvactors",
            "gen_ai.request.model": self._model(),
        }

    def _begun(self, turn: _Turn | None) -> None:
        if turn is not None and turn.waits:
            turn.waits = False
            self._queue.add(-1, turn.counted)

    def _measure(self, event: TurnEnded) -> None:
        attributes = self._attributes()
        if event.failed:
            return
        usage, timing = event.usage, event.timing
        for kind, tokens in (("input", "prompt_tokens"), ("output", "generated_tokens")):
            self._tokens.record(usage[tokens], {**attributes, "gen_ai.token.type": kind})
        self._reused.add(usage["reused_tokens"], attributes)
        self._duration.record(timing["total"], attributes)
        if usage["generated_tokens"]:
            self._first.record(timing["first_token"], attributes)
        self._hot.set(self._hot_bytes(), attributes)

    # -- spans -------------------------------------------------------------------------

    def _show(self, event: TurnEnded, turn: _Turn) -> None:
        span = self._tracer.start_span(
            f"{OPERATION} {event.agent_id}",
            turn.around,
            SpanKind.INTERNAL,
            start_time=self._nano(turn.asked),
        )
        if span.is_recording():
            span.set_attributes({**self._attributes(), **_said(event)})
            if event.failed:
                span.set_status(Status(StatusCode.ERROR))
            self._phases(event, turn, span)
        span.end(self._nano(event.at))

    def _phases(self, event: TurnEnded, turn: _Turn, parent: Span) -> None:
        """The phases of a turn one after the other, as long as `reply.timing` has them."""
        timing, inside, at = event.timing, trace.set_span_in_context(parent), turn.asked
        if not timing:
            return
        decode = timing["total"] - timing["queued"] - timing["restore"] - timing["prefill"]
        for name in ("queued", "restore", "prefill", "decode"):
            seconds = decode if name == "decode" else timing[name]
            if seconds > 0:
                span = self._tracer.start_span(name, inside, start_time=self._nano(at))
                at += seconds
                span.end(self._nano(at))

    def _nano(self, moment: float) -> int:
        return int((self._epoch + moment) * NANO)


def _said(event: TurnEnded) -> dict[str, Any]:
    """What is known of a turn, without its text."""
    agent = {"gen_ai.agent.id": event.agent_id, "gen_ai.agent.name": event.agent_id}
    if event.failed:
        return {**agent, "error.type": event.reason}
    usage = event.usage
    return {
        **agent,
        "gen_ai.response.finish_reasons": [event.reason],
        "gen_ai.usage.input_tokens": usage["prompt_tokens"],
        "gen_ai.usage.output_tokens": usage["generated_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["reused_tokens"],
        "kvactors.cache": event.cache,
    }
