"""How turns of a system go and end: streamed, cancelled, observed, failed, cut short."""

import logging
import threading
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import AgentSystem, Sampling, TurnFailed, TurnTimeout
from kvactors.actors.runtime.deterministic import VirtualTimer
from kvactors.actors.testing import FaultyModel, PuppetModel, use_puppet
from kvactors.core.errors import KvactorsError, SystemStopped
from kvactors.core.testing.models import endless_grid, grid

SHORT = Sampling(max_tokens=8)
LONG = Sampling(max_tokens=420)
WAIT = 60


def test_stream_pieces_add_up_to_the_replys_text(open_system: OpenSystem) -> None:
    alice = open_system().spawn("alice")

    stream = alice.stream("hello", sampling=Sampling(max_tokens=20))
    pieces = list(stream)

    assert "".join(piece.text for piece in pieces) == stream.reply.text
    assert tuple(t for piece in pieces for t in piece.token_ids) == stream.reply.token_ids


def test_a_stop_string_ends_the_turn_across_token_borders_and_is_cut_from_the_text(
    open_system: OpenSystem,
) -> None:
    system = open_system(store=False)
    whole = system.spawn("a").ask("x", sampling=Sampling(max_tokens=24)).get(timeout=WAIT)
    stop = whole.text[9:12]
    assert len(stop) == 3

    stream = system.spawn("b").stream("x", sampling=Sampling(max_tokens=24, stop=(stop,)))
    text = "".join(piece.text for piece in stream)

    assert text == stream.reply.text == whole.text[: whole.text.index(stop)]
    assert stream.reply.finish_reason == "stop"
    end = whole.text.index(stop) + len(stop)
    assert stream.reply.token_ids == whole.token_ids[:end]


def test_closing_a_stream_early_cancels_the_turn(open_system: OpenSystem) -> None:
    alice = open_system(endless_grid).spawn("alice")

    stream = alice.stream("hello", sampling=Sampling(max_tokens=2000))
    next(stream)
    stream.close()

    assert stream.reply.finish_reason == "cancelled"
    assert stream.reply.usage.generated_tokens < 2000


def test_cancel_keeps_what_was_decoded(open_system: OpenSystem) -> None:
    alice = open_system(endless_grid).spawn("alice")
    stream = alice.stream("hello", sampling=Sampling(max_tokens=2000))
    next(stream)

    alice.cancel()
    reply = stream.reply

    assert reply.finish_reason == "cancelled"
    assert alice.transcript().token_ids[-len(reply.token_ids) :] == reply.token_ids
    assert alice.ask("go on", sampling=SHORT).get(timeout=WAIT).cache == "hot"


def test_a_cancel_is_for_the_first_turn_that_has_not_expired_by_then(
    open_system: OpenSystem,
) -> None:
    timer = VirtualTimer()
    system = open_system(endless_grid, store=False, timer=timer)
    alice, agents = system.spawn("alice"), system.parts.agents
    assert all(paused.get(timeout=WAIT) for paused in agents.pause())
    expired = alice.ask("one", timeout=1)
    waiting = alice.ask("two", sampling=Sampling(max_tokens=2000))
    timer.let_pass(2)
    with pytest.raises(TurnTimeout):
        expired.get(timeout=WAIT)

    alice.cancel()
    agents.resume(system.info)

    assert waiting.get(timeout=WAIT).finish_reason == "cancelled"


def test_observed_text_is_remembered_and_prefilled_without_an_answer(
    open_system: OpenSystem,
) -> None:
    system = open_system()
    alice = system.spawn("alice")

    alice.observe("it rains")
    assert system.wait_idle(WAIT)

    assert [turn.role for turn in alice.transcript().turns] == ["user"]
    reply = alice.ask("and?", sampling=SHORT).get(timeout=WAIT)
    assert reply.cache == "hot"
    assert reply.usage.reused_tokens == len("it rains")


def test_tell_takes_a_turn_that_nobody_waits_for(open_system: OpenSystem) -> None:
    system = open_system()
    alice = system.spawn("alice")

    alice.tell("hello", sampling=SHORT)
    assert system.wait_idle(WAIT)

    assert len(alice.transcript().turns) == 2


def test_a_timeout_undoes_the_turn_and_its_neighbours_go_on(open_system: OpenSystem) -> None:
    faulty = FaultyModel(seed=3)
    system = open_system(faulty)
    alice, bob = system.spawn("alice"), system.spawn("bob")
    alice.ask([1, 2], sampling=SHORT).get(timeout=WAIT)
    before = alice.transcript()
    gate = threading.Event()
    faulty.arm(hold=gate)

    late = alice.ask([3, 4], sampling=SHORT, timeout=0.2)
    queued = alice.ask([5, 6], sampling=SHORT, timeout=0.2)
    other = bob.ask([1, 2], sampling=SHORT)
    assert faulty.reached.wait(WAIT)
    # Both end on time, though the GPU is in the middle of a step.
    for future in (queued, late):
        with pytest.raises(TurnTimeout, match=r"0\.2 s"):
            future.get(timeout=WAIT)
    gate.set()

    assert other.get(timeout=WAIT).finish_reason in ("stop", "length")
    assert alice.transcript() == before
    assert alice.ask([3], sampling=SHORT).get(timeout=WAIT).cache == "hot"


def test_a_poisoned_prompt_fails_alone_with_its_traceback(open_system: OpenSystem) -> None:
    options = {"attention": "packed", "store": False}
    clean = open_system(FaultyModel(seed=3), **options)
    expected = [
        clean.spawn(f"{i}").ask([i + 1] * 9, sampling=SHORT).get(timeout=WAIT) for i in range(4)
    ]
    faulty = FaultyModel(seed=3)
    system = open_system(faulty, **options)
    agents = [system.spawn(f"{i}") for i in range(4)]
    victim = system.spawn("victim")
    victim.ask([2, 3], sampling=SHORT).get(timeout=WAIT)
    before = victim.transcript()
    faulty.arm(poison=99)

    futures = [agent.ask([i + 1] * 9, sampling=SHORT) for i, agent in enumerate(agents)]
    with pytest.raises(TurnFailed, match="poisoned token 99") as caught:
        victim.ask([5, 99, 6], sampling=SHORT).get(timeout=WAIT)

    cause = caught.value.__cause__
    assert cause is not None
    assert "__call__" in "".join(traceback.format_tb(cause.__traceback__))
    for future, want in zip(futures, expected, strict=True):
        if 99 not in want.token_ids:
            assert future.get(timeout=WAIT).token_ids == want.token_ids
    faulty.arm()
    assert victim.transcript() == before
    assert victim.ask([5], sampling=SHORT).get(timeout=WAIT).cache == "hot"


def test_a_failing_decode_step_fails_only_its_guilty_row(open_system: OpenSystem) -> None:
    options: dict[str, Any] = {"attention": "packed", "store": False}
    clean = open_system(FaultyModel(seed=3), **options)
    long = Sampling(max_tokens=20)
    alone = [
        clean.spawn(f"{i}").ask([i + 1] * 9, sampling=long).get(timeout=WAIT) for i in range(5)
    ]
    guilty = alone[2].token_ids[10]
    innocent = [i for i in range(5) if guilty not in alone[i].token_ids[:-1] and guilty != i + 1]
    assert 2 not in innocent
    assert len(innocent) >= 2
    faulty = FaultyModel(seed=3)
    system = open_system(faulty, **options)
    agents = [system.spawn(f"{i}") for i in range(5)]
    faulty.arm(poison=guilty)

    futures = [agent.ask([i + 1] * 9, sampling=long) for i, agent in enumerate(agents)]

    with pytest.raises(TurnFailed, match="poisoned"):
        futures[2].get(timeout=WAIT)
    for i in innocent:
        assert futures[i].get(timeout=WAIT).token_ids == alone[i].token_ids


def test_leaving_the_system_finishes_queued_turns_and_saves(tmp_path: Path) -> None:
    with AgentSystem(grid, store=tmp_path / "s") as system:
        alice = system.spawn("alice")
        futures = [alice.ask([i + 1], sampling=SHORT) for i in range(4)]

    assert [future.get().durable.get() for future in futures] == [True] * 4
    assert futures[-1].get().cached.get() is True
    with pytest.raises(SystemStopped):
        alice.ask([1])


def test_an_interrupt_cancels_what_runs_and_saves_what_is_finished(tmp_path: Path) -> None:
    system = AgentSystem(endless_grid, store=tmp_path / "s")
    system.start()
    alice = system.spawn("alice")
    done = alice.ask([1, 2], sampling=SHORT).get(timeout=WAIT)
    stream = alice.stream([3], sampling=Sampling(max_tokens=5000))
    queued = alice.ask([4], sampling=SHORT)
    next(stream)

    system.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)

    assert done.durable.get() is True
    assert stream.reply.finish_reason == "cancelled"
    with pytest.raises(SystemStopped):
        queued.get(timeout=WAIT)
    with AgentSystem(endless_grid, store=tmp_path / "s") as system:
        kept = system.spawn("alice").transcript()
        assert kept.token_ids == (1, 2, *done.token_ids, 3, *stream.reply.token_ids)


def test_progress_reports_long_prefills_on_the_way(open_system: OpenSystem) -> None:
    seen: list[tuple[str, int, int]] = []
    system = open_system(store=False, progress=lambda *args: seen.append(args))

    system.spawn("a").ask([1] * 3000, sampling=SHORT).get(timeout=WAIT)

    assert seen[-1] == ("a", 2999, 2999)
    assert len(seen) > 1


def test_a_progress_callback_that_raises_does_not_hurt_the_turn(
    open_system: OpenSystem, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: Any) -> None:
        raise ValueError("no")

    system = open_system(store=False, progress=broken)

    assert system.spawn("a").ask([1] * 10, sampling=SHORT).get(timeout=WAIT).token_ids


def test_a_full_context_is_refused_with_the_numbers_and_warned_of_before(
    open_system: OpenSystem, caplog: pytest.LogCaptureFixture
) -> None:
    alice = open_system(context=40).spawn("alice")

    with caplog.at_level(logging.WARNING, logger="kvactors"):
        alice.ask([1] * 26, sampling=SHORT).get(timeout=WAIT)
    with pytest.raises(KvactorsError, match=r"context of 40 tokens"):
        alice.ask([1] * 3, sampling=SHORT).get(timeout=WAIT)

    assert "of 40 tokens of context" in caplog.text


def test_a_limit_that_an_answer_does_not_need_is_no_use_of_the_context(
    open_system: OpenSystem, caplog: pytest.LogCaptureFixture
) -> None:
    puppet = PuppetModel(["Yes.", "Yes, " * 200])
    system = open_system(puppet, prepare=partial(use_puppet, puppet=puppet), context=500)
    alice = system.spawn("alice")
    brief = alice.ask("Short?", sampling=LONG).get(timeout=WAIT)
    assert (brief.text, caplog.text) == ("Yes.", "")

    alice.ask("Long?", sampling=LONG).get(timeout=WAIT)

    assert f"'alice' has {len(alice.transcript().token_ids)} of 500 tokens" in caplog.text
