"""Spans and metrics for OpenTelemetry: per turn, with the conventions' names and no text."""

import os
import subprocess
import sys
from typing import Any

import pytest
from makers import OpenSystem
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes as names
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.trace import StatusCode

from kvactors.actors import AgentSystem, ContextExceeded, Sampling
from kvactors.actors.system.observe.telemetry import Telemetry
from kvactors.core.testing.models import grid
from kvactors.core.trace import TurnQueued, TurnStarted

SHORT = Sampling(max_tokens=6)
WAIT = 60
PROGRAM = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from kvactors.core import blas
blas.preload()
from kvactors.actors import AgentSystem, Sampling
from kvactors.core.testing.models import tiny_llama
exporter = InMemorySpanExporter()
with AgentSystem(tiny_llama(), store=False) as system:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    system.spawn("alice").ask([1, 2], sampling=Sampling(max_tokens=3)).get(timeout=60)
print(*sorted({span.name for span in exporter.get_finished_spans()}), sep=",")
"""


class Watched:
    """A system whose turns are told to providers of their own."""

    def __init__(self, system: AgentSystem) -> None:
        self.system, self.exporter = system, InMemorySpanExporter()
        self.tracers, self.reader = TracerProvider(), InMemoryMetricReader()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider(metric_readers=[self.reader])
        vitals = system.parts.lifecycle.vitals
        telemetry = Telemetry(
            lambda: system.info.name, lambda: vitals.hot_bytes, self.tracers, self.meters
        )
        system.parts.lifecycle.tracer.listen(telemetry, steps=False)

    def spans(self) -> dict[str, ReadableSpan]:
        self.system.wait_idle(WAIT)
        return {span.name: span for span in self.exporter.get_finished_spans()}

    def metrics(self) -> dict[str, list[Any]]:
        self.system.wait_idle(WAIT)
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def close(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


@pytest.fixture
def watched(open_system: OpenSystem) -> Any:
    watched = Watched(open_system(grid, context=3000))
    yield watched
    watched.system.stop(timeout=WAIT)
    watched.close()


def test_a_turn_is_a_span_with_its_phases_as_children(watched: Watched) -> None:
    reply = watched.system.spawn("alice").ask([7] * 300, sampling=SHORT).get(timeout=WAIT)

    spans = watched.spans()
    turn = spans.pop("invoke_agent alice")
    assert set(spans) == {"queued", "prefill", "decode"}
    assert dict(turn.attributes or {}) == {
        names.GEN_AI_OPERATION_NAME: names.GenAiOperationNameValues.INVOKE_AGENT.value,
        names.GEN_AI_PROVIDER_NAME: "kvactors",
        names.GEN_AI_REQUEST_MODEL: "grid",
        names.GEN_AI_AGENT_ID: "alice",
        names.GEN_AI_AGENT_NAME: "alice",
        names.GEN_AI_RESPONSE_FINISH_REASONS: ("length",),
        names.GEN_AI_USAGE_INPUT_TOKENS: 300,
        names.GEN_AI_USAGE_OUTPUT_TOKENS: 6,
        names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: 0,
        "kvactors.cache": "cold",
    }
    assert turn.status.status_code == StatusCode.UNSET
    assert turn.start_time is not None
    assert turn.end_time is not None
    for span in spans.values():
        assert span.parent == turn.context
        assert span.start_time is not None
        assert turn.start_time <= span.start_time
    assert (turn.end_time - turn.start_time) / 1e9 == pytest.approx(reply.timing.total, abs=0.5)
    prefill = spans["prefill"]
    assert prefill.end_time is not None
    assert prefill.start_time is not None
    assert (prefill.end_time - prefill.start_time) / 1e9 == pytest.approx(
        reply.timing.prefill, abs=1e-3
    )


def test_a_turn_is_a_child_of_the_span_in_which_it_was_asked(watched: Watched) -> None:
    tracer = watched.tracers.get_tracer("mine")
    alice = watched.system.spawn("alice")
    with tracer.start_as_current_span("a request") as around:
        asked = alice.ask([1, 2], sampling=SHORT)
    asked.get(timeout=WAIT)

    turn = watched.spans()["invoke_agent alice"]
    assert turn.parent == around.get_span_context()


def test_a_failed_turn_is_an_error_without_its_message(watched: Watched) -> None:
    alice = watched.system.spawn("alice")
    with pytest.raises(ContextExceeded):
        alice.ask([1] * 5000, sampling=SHORT).get(timeout=WAIT)
    alice.ask([1, 2], sampling=SHORT).get(timeout=WAIT)
    alice.rewind().get(timeout=WAIT)
    watched.system.wait_idle(WAIT)

    failed, good = [s for s in watched.exporter.get_finished_spans() if "alice" in s.name]
    assert failed.status.status_code == StatusCode.ERROR
    assert (failed.attributes or {})["error.type"] == "ContextExceeded"
    assert failed.status.description is None
    assert good.status.status_code == StatusCode.UNSET


def test_metrics_add_up_to_what_the_replies_say(watched: Watched) -> None:
    system = watched.system
    usages = [
        system.spawn(name).ask([n + 1] * 50, sampling=SHORT).get(timeout=WAIT).usage
        for name in ("alice", "bob")
        for n in range(2)
    ]

    found = watched.metrics()
    tokens = {
        point.attributes[names.GEN_AI_TOKEN_TYPE]: point
        for point in found[gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE]
    }
    assert tokens["output"].sum == sum(usage.generated_tokens for usage in usages) == 24
    assert tokens["input"].sum == sum(usage.prompt_tokens for usage in usages)
    (reused,) = found["kvactors.tokens.reused"]
    assert reused.value == sum(usage.reused_tokens for usage in usages) > 0
    (duration,) = found[gen_ai_metrics.GEN_AI_SERVER_REQUEST_DURATION]
    (first,) = found[gen_ai_metrics.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN]
    assert duration.count == first.count == 4
    assert 0 < first.sum < duration.sum
    assert [point.value for point in found["kvactors.queue.depth"]] == [0]
    (hot,) = found["kvactors.kv.hot"]
    assert hot.value == system.stats()["hot_bytes"] == 2 * 111 * 320


def test_a_provider_that_is_set_up_after_the_system_started_gets_spans() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OTEL_SDK_DISABLED": "false"},
    )

    assert done.stdout.strip() == "decode,invoke_agent alice,prefill,queued"


@pytest.mark.usefixtures("no_telemetry")
def test_without_the_package_nothing_listens_and_nothing_is_imported(
    open_system: OpenSystem,
) -> None:
    system = open_system(grid, store=False)

    assert not system.parts.lifecycle.tracer.on
    assert system.spawn("alice").ask([1, 2], sampling=SHORT).get(timeout=WAIT)
    assert "kvactors.actors.system.observe.telemetry" not in sys.modules


def test_a_provider_that_cannot_be_loaded_keeps_no_system_from_starting(
    open_system: OpenSystem, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no such provider")

    # It is OpenTelemetry's own: what loads a provider there is private.
    monkeypatch.setattr("opentelemetry.metrics.get_meter", broken)

    system = open_system(grid, store=False)

    assert "OpenTelemetry is told nothing" in caplog.text
    assert system.spawn("alice").ask([1, 2], sampling=SHORT).get(timeout=WAIT)


def test_a_turn_leaves_the_queue_that_it_came_into_whichever_model_is_loaded_then() -> None:
    reader, model = InMemoryMetricReader(), ["old"]
    telemetry = Telemetry(lambda: model[0], int, None, MeterProvider(metric_readers=[reader]))

    telemetry(TurnQueued(0.0, "alice", 1))
    model[0] = "new"
    telemetry(TurnStarted(1.0, "alice", 1, "cold", 0))

    data: Any = reader.get_metrics_data()
    (points,) = (
        metric.data.data_points
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        if metric.name == "kvactors.queue.depth"
    )
    assert {point.attributes["gen_ai.request.model"]: point.value for point in points} == {"old": 0}
