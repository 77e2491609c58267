"""What it costs to be seen: events that nobody hears, a recording, and OpenTelemetry.

    python -m kvactors.bench.micro.tracing [--quick]

Regime: one event of a kind that every decode step would tell, told to nobody, to a recorder and
to OpenTelemetry's API without a provider; then the decode step of 4 rows while nobody listens and
while all is recorded, in turns, and the median of the ratios of neighbouring runs. All is CPU
time, which neighbours change less. The tiny model's steps are the shortest that there are, so
that the share is the largest.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

from kvactors.actors import AgentSystem, Sampling
from kvactors.actors.system.observe.recorder import Recorder
from kvactors.bench.random_model import unnamed
from kvactors.bench.report import print_json, print_table
from kvactors.core.trace import DecodeStep, Tracer, TurnEnded, TurnQueued, TurnStarted

__all__ = ["main"]

ROWS = 4
USAGE = dict.fromkeys(("prompt_tokens", "reused_tokens", "prefilled_tokens", "generated_tokens"), 1)
TIMING = dict.fromkeys(("queued", "restore", "prefill", "first_token", "total"), 0.1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print tables and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few of everything")
    quick = parser.parse_args(arguments).quick
    count, runs, tokens = (2_000, 2, 30) if quick else (200_000, 21, 60)
    events = [
        ("a step, nobody listens", _cost(_step, None, count)),
        ("a step, recorded", _cost(_step, Recorder(), count)),
        ("a turn, nobody listens", _cost(_turn, None, count)),
        ("a turn, recorded", _cost(_turn, Recorder(), count)),
    ]
    telemetry = _telemetry()
    if telemetry is not None:
        cost = _cost(_turn, telemetry, count // 10, steps=False)
        events.append(("a turn, OpenTelemetry without a provider", cost))
    print_table("Microseconds of CPU for an event.", ("", "us"), events)
    random, described = unnamed(quick=quick)
    models = {"tiny": _tiny, "random": random}
    steps = [(name, *_decoding(model, runs, tokens)) for name, model in models.items()]
    print_table(
        f"CPU time of a decode step of {ROWS} rows. tiny: the tests' model; random: {described}.",
        ("model", "off ms", "recorded ms", "ratio"),
        steps,
    )
    named = [dict(zip(("model", "off_ms", "on_ms", "ratio"), row, strict=True)) for row in steps]
    print_json("tracing", rows=named, events_us=dict(events))


def _cost(tell: Callable[[Tracer, int], None], listener: Any, count: int, **options: bool) -> float:
    """Microseconds for telling something once; the best of five, as neighbours only add."""
    tracer, best = Tracer(), float("inf")
    if listener is not None:
        tracer.listen(listener, **options)
    for _ in range(5):
        begin = time.process_time()
        for number in range(count):
            tell(tracer, number)
        best = min(best, time.process_time() - begin)
    return best / count * 1e6


def _step(tracer: Tracer, number: int) -> None:
    """As `EngineMetrics.decode` does it."""
    began = time.perf_counter() if tracer.steps else 0.0
    if began:
        tracer.tell(DecodeStep(began, time.perf_counter(), ROWS, ("a", "b", "c", "d")))


def _turn(tracer: Tracer, number: int) -> None:
    """As `Outstanding` and `EngineMetrics.started` do it."""
    if tracer.on:
        tracer.tell(TurnQueued(time.perf_counter(), "alice", number))
    if tracer.on:
        tracer.tell(TurnStarted(time.perf_counter(), "alice", number, "hot", 1))
    if tracer.on:
        now = time.perf_counter()
        tracer.tell(TurnEnded(now, "alice", number, "stop", False, "hot", USAGE, TIMING))


def _telemetry() -> Any:
    try:
        from kvactors.actors.system.observe.telemetry import Telemetry
    except ImportError:
        return None
    return Telemetry(lambda: "model", lambda: 1)


def _tiny() -> tuple[Any, Any]:
    from kvactors.core.testing.models import PlainTokenizer, tiny_model

    return tiny_model(), PlainTokenizer()


def _decoding(model: Callable[[], Any], runs: int, tokens: int) -> tuple[float, float, float]:
    """Milliseconds of CPU for a step off and on, and the median of their ratios."""
    with AgentSystem(model, store=False) as system:
        _step_time(system, 8)
        pairs = []
        for number in range(runs):
            times = {}
            # Neither always goes first.
            for recorded in (number % 2 == 0, number % 2 == 1):
                with system.trace() if recorded else nullcontext():
                    times[recorded] = _step_time(system, tokens)
            pairs.append((times[False], times[True]))
    off, on = (median(pair[side] for pair in pairs) for side in (0, 1))
    return off, on, median(on / off for off, on in pairs)


def _step_time(system: AgentSystem, tokens: int) -> float:
    agents, sampling = [system.spawn(f"row {row}") for row in range(ROWS)], Sampling(tokens)
    begin = time.process_time()
    asked = [agent.ask([2], sampling=sampling) for agent in agents]
    for future in asked:
        future.get()
    spent = time.process_time() - begin
    for agent in agents:
        agent.rewind(to_token=0).get()
    return spent / tokens * 1000


if __name__ == "__main__":
    main()
