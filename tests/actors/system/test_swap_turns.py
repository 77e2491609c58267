"""Turns, ends and late answers of the store while the model is exchanged."""

import threading
from functools import partial
from typing import Any

import pytest
from makers import OpenSystem
from small_tokenizers import chat_format
from swap_models import (
    ANSWER,
    FIRST,
    SECOND,
    STORY,
    WAIT,
    Background,
    Grid,
    Held,
    ask,
    computed_alone,
    swapping,
)

from kvactors.actors import Reply, SwapFailed, SystemStopped
from kvactors.actors.testing import use_store
from kvactors.actors.turns.messages_gpu import Restored
from kvactors.core.errors import KvactorsError
from kvactors.persistence.store.store import Store

# -- turns meanwhile -----------------------------------------------------------------------


def test_turns_that_run_end_first_and_those_that_wait_are_the_new_models(
    open_grid: OpenSystem, pauses: Any
) -> None:
    held = Held()
    system = open_grid(held, prepare=pauses.hear)
    alice, bob = system.spawn("alice"), system.spawn("bob")
    held.hold()
    running = alice.stream("Hello", sampling=ANSWER)
    assert held.model.reached.wait(WAIT)
    waiting = alice.stream("world", sampling=ANSWER)
    swap = swapping(system, SECOND)
    for _ in range(2):
        assert pauses.acquire(timeout=WAIT)
    late = bob.ask("again", sampling=ANSWER)
    carol = system.spawn("carol")
    new = carol.ask([5, 6, 7], sampling=ANSWER)
    fork = Background(lambda: system.spawn("dan", from_="bob"))
    held.gate.set()

    assert (swap.end(), fork.end()) == (None, None)

    assert "".join(piece.text for piece in running) == running.reply.text
    assert "".join(piece.text for piece in waiting) == waiting.reply.text
    assert running.reply.usage.retokenized_tokens == 0
    assert waiting.reply.usage.retokenized_tokens > 0
    assert [bool(turn.source) for turn in alice.transcript().turns] == [True, True, False, False]
    assert computed_alone(system, alice, waiting.reply)
    assert computed_alone(system, bob, late.get(timeout=WAIT))
    assert computed_alone(system, carol, new.get(timeout=WAIT))
    assert system.spawn("dan").transcript() == bob.transcript()
    # Token ids of the old tokenizer are the new one's of the same text.
    assert carol.transcript().turns[0].text == chat_format("bytes").decode([5, 6, 7])
    assert carol.transcript().turns[0].token_ids != (5, 6, 7)


def test_turns_that_take_too_long_go_on_and_the_model_stays(
    open_grid: OpenSystem, pauses: Any
) -> None:
    held = Held()
    system = open_grid(held, prepare=pauses.hear)
    alice = system.spawn("alice")
    held.hold()
    running, waiting = [alice.ask(text, sampling=ANSWER) for text in ("Hello", "world")]
    assert held.model.reached.wait(WAIT)

    with pytest.raises(SwapFailed, match=r"1 turns still ran after 0\.1 s.*bytes chatml"):
        system.swap_model(SECOND, timeout=0.1)
    held.gate.set()

    assert running.get(timeout=WAIT).usage.retokenized_tokens == 0
    assert waiting.get(timeout=WAIT).cache == "hot"
    system.swap_model(SECOND, timeout=WAIT)
    assert ask(alice).cache == "cold"


def test_asks_that_race_with_swaps_each_end_in_a_reply_or_an_error(
    open_grid: OpenSystem,
) -> None:
    system = open_grid(FIRST)
    done = threading.Event()
    ended: list[Reply | KvactorsError] = []

    def talk(name: str) -> None:
        agent = system.spawn(name)
        while not done.is_set():
            try:
                ended.append(agent.ask("Hello world", sampling=ANSWER).get(timeout=WAIT))
            except KvactorsError as error:
                ended.append(error)

    talkers = [Background(partial(talk, name)) for name in "abc"]
    for model in (SECOND, FIRST, Grid("wordpiece", "none"), FIRST):
        system.swap_model(model)
    done.set()

    assert [talker.end() for talker in talkers] == [None] * 3
    assert {type(end) for end in ended} == {Reply}
    assert system.wait_idle(WAIT)
    turns = {}
    for agent in system.agents():
        assert computed_alone(system, agent, ask(agent))
        turns[agent.agent_id] = agent.transcript().turns
    system.stop(timeout=WAIT)
    again = open_grid(FIRST)
    assert {name: again.spawn(name).transcript().turns for name in "abc"} == turns


def test_an_agent_may_be_forgotten_while_its_turn_holds_a_swap_up(
    open_grid: OpenSystem, pauses: Any
) -> None:
    held = Held()
    system = open_grid(held, prepare=pauses.hear)
    alice = system.spawn("alice")
    held.hold()
    running, waiting = [alice.ask(text, sampling=ANSWER) for text in ("Hello", "world")]
    assert held.model.reached.wait(WAIT)
    swap = swapping(system, SECOND)
    assert pauses.acquire(timeout=WAIT)
    forgetting = Background(lambda: system.forget("alice"))
    held.gate.set()

    assert (swap.end(), forgetting.end()) == (None, None)
    for future in (running, waiting):
        if future.done:
            continue
        with pytest.raises(KvactorsError):
            future.get(timeout=WAIT)
    assert system.wait_idle(WAIT)
    assert ask(system.spawn("alice")).usage.retokenized_tokens == 0


def test_a_stop_ends_a_swap_that_waits_and_every_turn(open_grid: OpenSystem, pauses: Any) -> None:
    held = Held()
    system = open_grid(held, prepare=pauses.hear)
    alice = system.spawn("alice")
    held.hold()
    running, waiting = [alice.ask(text, sampling=ANSWER) for text in ("Hello", "world")]
    assert held.model.reached.wait(WAIT)
    swap = swapping(system, SECOND)
    assert pauses.acquire(timeout=WAIT)

    stopping = Background(system.stop)
    assert isinstance(swap.end(), SystemStopped)
    held.gate.set()

    assert stopping.end() is None
    assert [future.get(timeout=WAIT).finish_reason for future in (running, waiting)] == [
        "length"
    ] * 2
    with pytest.raises(SystemStopped):
        system.swap_model(SECOND)


def test_kv_that_was_asked_for_under_the_old_model_is_not_the_new_ones(
    open_grid: OpenSystem,
) -> None:
    class Late(Store):
        def read_kv(self, agent_id: str, fingerprint: str, *, used: bool = True) -> Any:
            if fingerprint != old:
                stored = super().read_kv(agent_id, old, used=used)
                assert stored
                system.parts.lifecycle.gpu.tell(Restored(agent_id, old, stored))
            return super().read_kv(agent_id, fingerprint, used=used)

    system = open_grid(FIRST, prepare=partial(use_store, kind=Late))
    alice = system.spawn("alice")
    ask(alice, STORY)
    old, twin = system.info.fingerprint, Grid("bytes", seed=9)
    system.swap_model(twin)

    reply = ask(alice)
    assert (reply.cache, reply.usage.reused_tokens) == ("cold", 0)
    assert computed_alone(system, alice, reply)
