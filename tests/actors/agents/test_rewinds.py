"""Agents that are rewound: what they say, what is stored, and what it costs."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conversations import answered, as_if_told_at_once, ask
from makers import OpenSystem
from seeded import bug, seeded

from kvactors.actors import (
    Agent,
    AgentSystem,
    LanePolicy,
    MailboxFull,
    RewindOutOfRange,
    Sampling,
)
from kvactors.actors.agents import rewinding
from kvactors.actors.testing import FaultyModel
from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.errors import InvalidInput
from kvactors.core.testing.models import Faulty, PlainTokenizer, snap_to_grid, tiny_model
from kvactors.persistence.store.store import Store

SHORT = Sampling(max_tokens=8)
WAIT = 60
LONG = "a long beginning, and decade by decade " * 8
FIRST = [{"role": "user", "content": LONG}]


# -- rewinding -----------------------------------------------------------------------------


def test_a_rewound_turn_is_answered_again_the_same(chatting: Callable[..., AgentSystem]) -> None:
    alice = chatting(store=False).spawn("alice")
    ask(alice, LONG)
    before = alice.transcript()
    first = ask(alice, "be")

    rewound = alice.rewind().get(timeout=WAIT)

    assert (rewound.turns, rewound.tokens) == (2, len(before.token_ids))
    assert alice.transcript() == before
    assert ask(alice, "be").token_ids == first.token_ids


def test_an_agent_whose_rewind_fails_says_so_and_goes_on(
    chatting: Callable[..., AgentSystem],
) -> None:
    @bug(rewinding, "cut_at_token")
    def broken(_true: Any) -> Callable[..., Any]:
        def cut(*_args: Any) -> Any:
            raise TypeError("no such cut")

        return cut

    alice = chatting(store=False).spawn("alice")
    ask(alice, "be")
    before = alice.transcript()

    with seeded(broken), pytest.raises(TypeError, match="no such cut"):
        alice.rewind(to_token=2).get(timeout=WAIT)

    assert alice.transcript() == before
    assert ask(alice, "be").token_ids


def test_a_rewind_to_a_token_goes_on_from_there(chatting: Callable[..., AgentSystem]) -> None:
    system = chatting(store=False)
    alice = system.spawn("alice")
    ask(alice, LONG)
    tokens = alice.transcript().token_ids

    rewound = alice.rewind(to_token=50).get(timeout=WAIT)
    kept = alice.transcript().token_ids
    reply = ask(alice, [7, 8, 9])

    assert rewound.tokens == 50
    assert kept == tokens[:50]
    assert reply.token_ids == as_if_told_at_once(system, alice, reply)


@pytest.mark.parametrize("wanted", [{"turns": 2}, {"to_token": 10_000}])
def test_an_impossible_rewind_forgets_nothing(
    chatting: Callable[..., AgentSystem], wanted: Any
) -> None:
    alice = chatting(store=False).spawn("alice")
    ask(alice, "Hello")
    remembered = alice.transcript()

    with pytest.raises(RewindOutOfRange):
        alice.rewind(**wanted).get(timeout=WAIT)

    assert alice.transcript() == remembered


@pytest.mark.parametrize(
    "wanted", [{"turns": 0}, {"turns": True}, {"to_token": -1}, {"turns": 1, "to_token": 1}]
)
def test_what_is_no_rewind_is_refused_at_once(
    open_system: OpenSystem, wanted: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput):
        open_system(store=False).spawn("alice").rewind(**wanted)


def test_a_rewind_waits_for_the_prompts_before_it_and_goes_before_those_after(
    open_system: OpenSystem,
) -> None:
    model = Faulty(snap_to_grid(tiny_model(seed=3)))
    gate = threading.Event()
    alice = open_system(lambda: (model, PlainTokenizer()), store=False).spawn("alice")
    model.arm(hold=gate)

    first = alice.ask([1, 2], sampling=SHORT)
    assert model.reached.wait(WAIT)
    rewound, second = alice.rewind(), alice.ask([3, 4], sampling=SHORT)
    gate.set()

    assert first.get(timeout=WAIT).token_ids
    assert rewound.get(timeout=WAIT).tokens == 0
    reply = second.get(timeout=WAIT)
    assert alice.transcript().token_ids == (3, 4, *reply.token_ids)


# -- what is stored ------------------------------------------------------------------------


def test_a_restored_agent_knows_what_was_kept_and_nothing_that_was_taken_back(
    chatting: Callable[..., AgentSystem],
) -> None:
    def talk(system: AgentSystem) -> Agent:
        alice = system.spawn("alice")
        first = ask(alice, messages=FIRST)
        ask(alice, messages=answered(FIRST, first, "Hello world"))
        ask(alice, messages=answered(FIRST, first, "Hello hello"))
        ask(alice, "abc")
        alice.rewind().get(timeout=WAIT)
        return alice

    never_stopped = talk(chatting(store=False))
    expected = ask(never_stopped, "be")
    system = chatting()
    alice = talk(system)
    remembered = alice.transcript()
    system.stop()

    restored = chatting().spawn("alice")

    assert restored.transcript() == remembered
    assert ask(restored, "be").token_ids == expected.token_ids


@pytest.mark.parametrize("stored", [True, False])
def test_a_rewind_says_when_it_is_on_disk(
    chatting: Callable[..., AgentSystem], stored: bool
) -> None:
    alice = (chatting() if stored else chatting(store=False)).spawn("alice")
    ask(alice, "Hello")

    assert alice.rewind().get(timeout=WAIT).durable.get(timeout=WAIT) is stored


def test_a_rewind_and_the_turn_that_made_it_are_one_record(
    chatting: Callable[..., AgentSystem], tmp_path: Path
) -> None:
    system = chatting()
    alice = system.spawn("alice")
    ask(alice, messages=FIRST)
    ask(alice, messages=[{"role": "user", "content": LONG + "X"}])
    system.stop()

    store = Store(tmp_path / "store")
    records = store.read_ledger("alice") or ()
    store.close()

    assert [record.get("keep") for record in records] == [None, 0]
    assert [len(record["turns"]) for record in records] == [2, 2]


def test_a_rewound_agent_reuses_what_is_left_of_its_cache(
    chatting: Callable[..., AgentSystem],
) -> None:
    alice = chatting(store=False).spawn("alice")
    ask(alice, LONG)
    ask(alice, "Hello world")
    before = alice.transcript().token_ids
    alice.rewind().get(timeout=WAIT)

    reply = ask(alice, "Hello hello")

    assert reply.cache == "hot"
    assert reply.usage.reused_tokens == common_prefix(before, alice.transcript().token_ids) > 50


def test_a_rewound_agent_reuses_its_cache_after_a_restart(
    chatting: Callable[..., AgentSystem],
) -> None:
    first = chatting()
    ask(first.spawn("alice"), LONG * 4)
    kept = len(first.spawn("alice").transcript().token_ids)
    ask(first.spawn("alice"), "Hello world")
    first.spawn("alice").rewind()
    first.stop()

    reply = ask(chatting().spawn("alice"), "Hello hello")

    assert reply.cache == "warm"
    # Segments are kept whole or not at all; the first one ends within the first turn.
    assert 0 < reply.usage.reused_tokens <= kept + 20


@pytest.mark.parametrize("words", [1, 60], ids=["a shorter memory", "a longer memory"])
def test_what_a_rewound_agent_was_told_instead_is_warm_after_a_restart(
    chatting: Callable[..., AgentSystem], words: int
) -> None:
    def talk(system: AgentSystem) -> Agent:
        alice = system.spawn("alice")
        ask(alice, LONG)
        alice.rewind(to_token=50).get(timeout=WAIT)
        ask(alice, "Hello world, " * words)
        return alice

    expected = ask(talk(chatting(store=False)), "be")
    system = chatting()
    known = len(talk(system).transcript().token_ids)
    system.stop()

    reply = ask(chatting().spawn("alice"), "be")

    assert (reply.cache, reply.token_ids) == ("warm", expected.token_ids)
    assert reply.usage.reused_tokens == known - 1


def test_who_rewinds_forks_or_deactivates_finds_no_room_in_a_full_lane_either(
    open_system: OpenSystem,
) -> None:
    model = FaultyModel()
    system = open_system(model)
    alice, gate = system.spawn("alice", prompt_lane=LanePolicy(1)), model.hold()
    alice.ask([1], sampling=SHORT)
    assert model.reached.wait(WAIT)
    waiting = alice.ask([2], sampling=SHORT)
    refused = []

    for act in (
        alice.rewind,
        lambda: system.spawn("kid", from_=alice),
        lambda: system.deactivate("alice"),
    ):
        try:
            act()
        except MailboxFull as error:
            refused.append(str(error))
    gate.set()

    assert len(refused) == 3
    assert waiting.get(timeout=WAIT).token_ids
    assert [agent.agent_id for agent in system.agents()] == ["alice"]
