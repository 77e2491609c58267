"""Recordings as Chrome traces: valid, nested, with sums that agree with the replies."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import OpenSystem
from typer.testing import CliRunner

from kvactors.actors import InvalidInput, Sampling
from kvactors.actors.frontends.cli.app import app
from kvactors.actors.system.observe.chrome_trace import (
    ENGINE,
    FIRST_AGENT,
    SAVES,
    chrome_trace,
    merge,
)
from kvactors.actors.system.observe.recorder import Recorder
from kvactors.actors.system.observe.timeline import draw_timeline
from kvactors.core.testing.models import grid
from kvactors.core.trace import (
    DecodeStep,
    PrefillStep,
    RestoreBegan,
    RestoreEnded,
    SaveBegan,
    SaveEnded,
    TraceEvent,
    TurnEnded,
    TurnQueued,
    TurnStarted,
)

Trace = dict[str, Any]
WAIT = 60
# Times are rounded to a tenth of a microsecond, a bar's start and its length each.
ROUNDED = 0.2


def tracks(trace: Trace) -> dict[tuple[int, str], list[Trace]]:
    """The spans of each track, by process and name."""
    names = {
        (record["pid"], record["tid"]): record["args"]["name"]
        for record in trace["traceEvents"]
        if record["ph"] == "M" and record["name"] == "thread_name"
    }
    found = defaultdict[tuple[int, str], list[Trace]](list)
    for record in trace["traceEvents"]:
        if record["ph"] == "X":
            found[record["pid"], names[record["pid"], record["tid"]]].append(record)
    return found


def require_nesting(spans: list[Trace]) -> None:
    """Of any two spans of a track one ends before the other begins, or lies within it."""
    open_ends = list[float]()
    for span in sorted(spans, key=lambda s: (s["ts"], -s["dur"])):
        end = span["ts"] + span["dur"]
        assert span["dur"] >= 0
        while open_ends and open_ends[-1] <= span["ts"] + ROUNDED:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1] + ROUNDED, span
        open_ends.append(end)


def total(spans: list[Trace], name: str, count: Callable[[Any], int]) -> int:
    return sum(count(span["args"]) for span in spans if span["name"] == name)


# -- a system's trace ----------------------------------------------------------------------


def test_a_trace_has_a_track_for_each_agent_whose_sums_are_those_of_the_replies(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    path, sampling = tmp_path / "out.json", Sampling(max_tokens=12)
    system = open_system(grid)
    with system.trace(path) as recorder:
        asked = {
            name: [system.spawn(name).ask([n + 2] * 400, sampling=sampling) for _ in range(3)]
            for n, name in enumerate("abcde")
        }
        usages = {
            name: [future.get(timeout=WAIT).usage for future in futures]
            for name, futures in asked.items()
        }
        system.wait_idle(WAIT)

    trace = json.loads(path.read_text("utf-8"))
    found = tracks(trace)
    assert set(found) == {(1, name) for name in ("GPU actor: steps", "saves", *"abcde")}
    for name, of_agent in usages.items():
        spans = found[1, name]
        require_nesting(spans)
        turns = [span["args"] for span in spans if span["name"] == "turn"]
        prefilled = total(spans, "prefill", lambda args: args["to"] - args["from"])
        assert [turn["generated_tokens"] for turn in turns] == [12, 12, 12]
        assert [turn["reused_tokens"] for turn in turns] == [u.reused_tokens for u in of_agent]
        assert total(spans, "decode", lambda args: args["tokens"]) == 36
        # The last token of a prompt is fed by the first decode step.
        assert prefilled == sum(usage.prefilled_tokens - 1 for usage in of_agent)
    steps, saves = found[1, "GPU actor: steps"], found[1, "saves"]
    require_nesting(steps)
    require_nesting(saves)
    assert total(steps, "decode", lambda args: args["tokens"]) == 5 * 36
    assert max(step["args"]["batch"] for step in steps if step["name"] == "decode") > 1
    assert total(steps, "prefill", lambda args: args["tokens"]) == sum(
        usage.prefilled_tokens - 1 for of_agent in usages.values() for usage in of_agent
    )
    assert {save["name"] for save in saves} == set("abcde")
    assert sum(save["args"]["bytes"] for save in saves) > 5 * 1200 * 320
    assert trace["otherData"]["dropped_events"] == recorder.dropped == 0


def test_a_first_token_that_came_of_a_prompts_forward_is_counted_there(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    path = tmp_path / "out.json"
    system = open_system(grid, store=False)
    with system.trace(path):
        system.spawn("alice").ask([1, 2, 3], sampling=Sampling(max_tokens=3)).get(timeout=WAIT)

    steps = tracks(json.loads(path.read_text("utf-8")))[1, "GPU actor: steps"]
    assert total(steps, "prefill", lambda args: args["drawn"]) == 1
    assert total(steps, "decode", lambda args: args["tokens"]) == 2


def test_a_recording_too_small_says_what_it_lacks(open_system: OpenSystem, tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    system = open_system(grid, store=False)
    with system.trace(path, capacity=10) as recorder:
        system.spawn("alice").ask([1], sampling=Sampling(max_tokens=50)).get(timeout=WAIT)
    with pytest.raises(InvalidInput), system.trace(path, capacity=0):
        pass

    trace = json.loads(path.read_text("utf-8"))
    assert len(recorder.events) == 10
    assert trace["otherData"]["dropped_events"] == recorder.dropped > 40
    for spans in tracks(trace).values():
        require_nesting(spans)


# -- any events ----------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[TraceEvent]:
    """Events in an order of time that no system would bring about, or hardly."""
    events, at = list[TraceEvent](), 0.0
    for _ in range(draw(st.integers(3, 20))):
        at += draw(st.integers(0, 3)) * 1e-3
        began = at - draw(st.integers(0, 5)) * 1e-3
        name, serial = "alice", draw(st.integers(1, 2))
        kinds: list[TraceEvent] = [
            TurnQueued(at, name, serial),
            TurnStarted(at, name, serial, "hot", 0),
            TurnEnded(at, name, serial, "stop", False, "hot", {}, {}),
            RestoreBegan(at, name),
            RestoreEnded(at, name, 7, "warm"),
            PrefillStep(began, at, ((name, 0, 5),)),
            DecodeStep(began, at, 1, (name,)),
            SaveBegan(at, name, 7),
            SaveEnded(at, name, 7, True),
        ]
        events.append(draw(st.sampled_from(kinds)))
    return events


@settings(max_examples=400)
@given(histories())
def test_the_tracks_of_agents_nest_whatever_happens(events: list[TraceEvent]) -> None:
    recorder = Recorder()
    for event in events:
        recorder(event)

    for (_, name), spans in tracks(chrome_trace(recorder)).items():
        if name == "alice":
            require_nesting(spans)
        assert all(span["ts"] >= 0 for span in spans)


def test_two_processes_share_one_time_axis() -> None:
    first, second = Recorder(), Recorder()
    first.epoch, second.epoch = 1000.0, 2000.0
    first(DecodeStep(5.0, 6.0, 2, ("alice", "bob")))
    second(DecodeStep(1.0, 2.0, 1, ("alice",)))

    whole = merge({"one": chrome_trace(first), "two": chrome_trace(second)})

    steps = [record for record in whole["traceEvents"] if record["ph"] == "X"]
    assert [(s["pid"], s["tid"], s["ts"], s["dur"]) for s in steps] == [
        (1, ENGINE, 0.0, 1e6),
        (2, ENGINE, 996e6, 1e6),
    ]
    names = [r["args"]["name"] for r in whole["traceEvents"] if r["name"] == "process_name"]
    assert names == ["one", "two"]


# -- the demo ------------------------------------------------------------------------------


def test_a_timeline_of_many_agents_with_odd_names_is_drawn(tmp_path: Path) -> None:
    recorder, at = Recorder(), 1.0
    for number in range(60):
        name = f"${number}$ " + "long" * 60
        recorder(TurnQueued(at, name, number))
        recorder(TurnStarted(at, name, number, "cold", 0))
        recorder(PrefillStep(at, at + 0.01, ((name, 0, 9),)))
        recorder(DecodeStep(at + 0.01, at + 0.02, 1, (name,)))
        recorder(TurnEnded(at + 0.02, name, number, "stop", False, "cold", {}, {}))
        at += 0.01

    draw_timeline(chrome_trace(recorder), tmp_path / "out.png")

    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_without_matplotlib_is_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # As if it was not installed: that can be had in no other way in this process.
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    monkeypatch.delitem(sys.modules, "kvactors.actors.system.observe.timeline", raising=False)

    result = CliRunner().invoke(app, ["demo", "--plot", str(tmp_path / "out.png")])

    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "pip install 'kvactors[plot]'" in result.stderr


@pytest.mark.slow
def test_the_demo_traces_and_draws_both_of_its_processes(tmp_path: Path) -> None:
    trace, plot = tmp_path / "out.json", tmp_path / "out.png"
    command = [sys.executable, "-P", "-m", "kvactors.actors.cli", "demo", "--agents", "2", "--json"]

    done = subprocess.run(
        [*command, "--trace", str(trace), "--plot", str(plot)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "COLUMNS": "200"},
    )

    entries = json.loads(done.stdout)["agents"]
    whole = json.loads(trace.read_text("utf-8"))
    names = [r["args"]["name"] for r in whole["traceEvents"] if r["name"] == "process_name"]
    found = tracks(whole)
    assert [name.split("(")[0] for name in names] == ["first process ", "second process "]
    assert {pid for pid, _ in found} == {1, 2}
    for spans in found.values():
        require_nesting(spans)
    for entry in entries:
        spans = found[2, entry["agent"]]
        assert [span["name"] for span in spans if span["name"] != "queued"] == [
            "turn", "restore", "prefill", "decode",
        ]  # fmt: skip
        assert spans[0]["args"]["reused_tokens"] == entry["reused_tokens"]
    last_told = max(s["ts"] + s["dur"] for (pid, _), of in found.items() if pid == 1 for s in of)
    assert min(s["ts"] for (pid, _), of in found.items() if pid == 2 for s in of) > last_told
    assert {record["tid"] for record in whole["traceEvents"] if record["ph"] == "X"} == {
        ENGINE, SAVES, FIRST_AGENT, FIRST_AGENT + 1,
    }  # fmt: skip
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert f"The trace is in {trace}" in done.stderr
