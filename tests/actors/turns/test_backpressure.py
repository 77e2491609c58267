"""Bounded queues, priorities, deadlines and cancels wherever a turn is; nothing is left behind."""

import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from behaviours import Does, Echo
from makers import OpenSystem

from kvactors.actors import (
    AdmissionFull,
    Agent,
    AgentBehaviour,
    AgentSystem,
    InvalidInput,
    LanePolicy,
    MailboxFull,
    Sampling,
    TurnTimeout,
)
from kvactors.actors.testing import FaultyModel, use_actors
from kvactors.actors.turns.messages_gpu import Step
from kvactors.actors.workers.gpu import GpuActor
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.events import Aborted, Finished, KVNeeded
from kvactors.core.schedule.request import Request
from kvactors.core.testing.engines import make_request

WAIT = 60
SHORT = Sampling(max_tokens=6)


def hold(system: AgentSystem, held: FaultyModel) -> tuple[Agent, threading.Event]:
    """An agent whose turn holds the engine in the middle of a step, until the event is set."""
    first, gate = system.spawn("first"), held.hold()
    first.ask([1], sampling=SHORT)
    assert held.reached.wait(WAIT)
    return first, gate


# -- where a turn can be when its end comes --------------------------------------------


def at(engine: Engine, state: str) -> Request:
    """A turn of "a" that is queued, restoring, prefilling or decoding."""
    sampling = Sampling(max_tokens=50)
    if state == "queued":
        engine.submit(make_request("other", [], [1, 2], Sampling(max_tokens=500)))
        engine.step()
    known = [3] * 40 if state == "restoring" else []
    length = 900 if state == "prefilling" else 10
    request = make_request("a", known, [5] * length, sampling, serial=7)
    engine.submit(request)
    for _ in range(4 if state == "decoding" else 1):
        events = engine.step()
    if state == "restoring":
        assert KVNeeded("a") in events
    return request


@pytest.mark.parametrize("state", ["queued", "restoring", "prefilling", "decoding"])
@pytest.mark.parametrize("error", [None, TurnTimeout("late")])
def test_a_turn_ends_within_one_step_wherever_it_is(
    load_grid: Callable[..., LoadedModel], state: str, error: Exception | None
) -> None:
    engine = Engine(load_grid(), EngineConfig(1, 1 << 30, stored=True))
    request = at(engine, state)
    prefilled = 0 < request.cached < request.target
    assert (state == "prefilling") == prefilled
    assert (state == "decoding") == (request.decoded > 0)

    engine.cancel("a", 7, error)
    events = engine.step()

    [end] = [e for e in events if isinstance(e, Finished | Aborted)]
    if isinstance(end, Aborted):
        assert (end.agent_id, end.error) == ("a", error)
    else:
        assert (error, end.reason, end.request) == (None, "cancelled", request)
    engine.provide("a", ())
    engine.check()
    engine.forget("a")
    assert engine.stats()["waiting"] == 0


# -- who goes first --------------------------------------------------------------------


def ends(engine: Engine) -> list[str]:
    """Who ended in the next step."""
    return [event.request.agent_id for event in engine.step() if isinstance(event, Finished)]


def test_a_higher_priority_goes_first_and_nobody_waits_for_ever(
    load_grid: Callable[..., LoadedModel],
) -> None:
    engine = Engine(load_grid(), EngineConfig(1, 1 << 30, stored=False))
    engine.submit(make_request("patient", [], [2], SHORT))
    order: list[str] = []
    for number in range(60):
        urgent = make_request(f"urgent {number}", [], [3], Sampling(max_tokens=1))
        urgent.priority = 1
        engine.submit(urgent)
        order += ends(engine)

    # Passed over eight times it is as urgent as those that come later.
    assert order[0] == "urgent 0"
    assert 8 <= order.index("patient") <= 10


def test_turns_that_give_way_leave_a_place_for_one_that_does_not(
    load_grid: Callable[..., LoadedModel],
) -> None:
    engine = Engine(load_grid(), EngineConfig(3, 1 << 30, stored=False))
    for number in range(5):
        helper = make_request(f"helper {number}", [], [2], Sampling(max_tokens=40))
        helper.priority = -1
        engine.submit(helper)
    engine.step()
    assert len(engine.memory.running.active) == 2

    engine.submit(make_request("main", [], [3], Sampling(max_tokens=1)))
    order: list[str] = []
    while not order:
        order += ends(engine)

    assert order == ["main"]


def test_priorities_of_asks_reach_the_engine(open_system: OpenSystem) -> None:
    seen: dict[str, int] = {}

    class Watched(GpuActor):
        def on_receive(self, message: Any) -> Any:
            if isinstance(message, Step):
                seen[message.request.agent_id] = message.request.priority
            return super().on_receive(message)

    system = open_system(store=False, prepare=partial(use_actors, gpu=Watched))

    turns = [
        system.spawn("a").ask([2], sampling=SHORT, priority=5),
        system.spawn("b").ask([2], sampling=SHORT),
        system.spawn("c").observe("x"),
    ]

    for turn in turns:
        turn.get(timeout=WAIT)
    assert seen == {"a": 5, "b": 0, "c": -1}
    with pytest.raises(InvalidInput):
        system.spawn("a").ask([2], priority=1.5)  # type: ignore[arg-type]


# -- bounds ----------------------------------------------------------------------------


def test_a_full_admission_queue_refuses_with_the_numbers(
    load_grid: Callable[..., LoadedModel],
) -> None:
    engine = Engine(load_grid(), EngineConfig(1, 1 << 30, stored=False, max_waiting=2))
    for number in range(2):
        engine.submit(make_request(f"{number}", [], [1], SHORT))

    with pytest.raises(AdmissionFull, match="2 turns wait"):
        engine.submit(make_request("2", [], [1], SHORT))

    order: list[str] = []
    while engine.busy:
        order += ends(engine)
    assert order == ["0", "1"]


def test_what_the_engine_refuses_fails_that_turn_alone(open_system: OpenSystem) -> None:
    held = FaultyModel(seed=3)
    system = open_system(held, store=False, max_batch=1, max_waiting=1)
    _, gate = hold(system, held)
    futures = [system.spawn(f"{n}").ask([1], sampling=SHORT) for n in range(4)]
    gate.set()

    refused = 0
    for future in futures:
        try:
            future.get(timeout=WAIT)
        except AdmissionFull:
            refused += 1
    assert 1 <= refused < 4
    assert system.wait_idle(WAIT)
    system.check()


@pytest.mark.parametrize("when_full", ["refuse", "drop_oldest", "block"])
def test_an_agents_lane_holds_what_its_policy_says(open_system: OpenSystem, when_full: Any) -> None:
    held = FaultyModel(seed=3)
    lane = LanePolicy(2, when_full, timeout=0.01)
    system = open_system(held, store=False, prompt_lane=lane)
    first, gate = hold(system, held)
    futures = [first.ask([number], sampling=SHORT) for number in (2, 3)]

    if when_full == "drop_oldest":
        futures.append(first.ask([4], sampling=SHORT))
        with pytest.raises(MailboxFull, match="gave way"):
            futures.pop(0).get(timeout=WAIT)
    else:
        with pytest.raises(MailboxFull, match="2 prompts wait"):
            first.ask([4], sampling=SHORT)
    gate.set()

    for future in futures:
        assert future.get(timeout=WAIT).token_ids
    assert system.wait_idle(WAIT)
    system.check()


def test_a_lane_that_is_set_later_holds_for_the_messages_of_a_behaviour_too(
    open_system: OpenSystem,
) -> None:
    held = FaultyModel(seed=3)
    system = open_system(held, store=False)
    _, gate = hold(system, held)
    does = system.spawn("does", behaviour=Does())
    system.spawn("does", prompt_lane=LanePolicy(1))
    entered = threading.Event()

    async def thinks(me: AgentBehaviour) -> None:
        entered.set()
        await me.think([1], sampling=SHORT)

    does.deliver(thinks)
    assert entered.wait(WAIT)
    _, full = (does.deliver(thinks) for _ in range(2))
    gate.set()

    with pytest.raises(MailboxFull, match="1 prompts wait"):
        full.get(timeout=WAIT)
    assert system.wait_idle(WAIT)


def test_after_any_mix_nothing_is_left(open_system: OpenSystem) -> None:
    system = open_system(
        memory_budget=24 * 256 * 320, max_batch=3, prompt_lane=LanePolicy(3), max_waiting=8
    )
    rng = random.Random(5)
    agents = [system.spawn(f"{number}") for number in range(12)]
    outcomes: dict[str, int] = {}

    def note(outcome: str) -> None:
        outcomes[outcome] = outcomes.get(outcome, 0) + 1

    futures = []
    for _ in range(200):
        agent = rng.choice(agents)
        prompt = [rng.randrange(1, 128) for _ in range(rng.choice((1, 30, 300)))]
        options: dict[str, Any] = {"sampling": Sampling(max_tokens=rng.randrange(1, 12))}
        if rng.random() < 0.3:
            options["timeout"] = rng.choice((0.001, 0.05, 10))
        try:
            futures.append(agent.ask(prompt, priority=rng.randrange(-1, 3), **options))
        except (MailboxFull, TurnTimeout) as error:
            note(type(error).__name__)
        if rng.random() < 0.2:
            agent.cancel()
        if rng.random() < 0.05:
            system.check()
    for future in futures:
        try:
            note(future.get(timeout=WAIT).finish_reason)
        except Exception as error:
            note(type(error).__name__)

    assert system.wait_idle(WAIT)
    system.check()
    assert outcomes.keys() >= {"length", "TurnTimeout"}, outcomes


# -- what cannot be sent ---------------------------------------------------------------


def test_a_prompt_that_a_defect_keeps_from_the_mailbox_leaves_nobody_waiting(
    open_system: OpenSystem,
) -> None:
    system = open_system(store=False)
    alice, echo = system.spawn("alice"), system.spawn("echo", behaviour=Echo())
    assert system.wait_idle(WAIT)
    for actor in (system.parts.agents.actor("alice"), system.parts.router.receiver("echo")):
        assert actor is not None
        actor.actor_inbox.lane = 3  # type: ignore[assignment]

    for send in (lambda: alice.ask([1]), lambda: alice.rewind(), lambda: echo.request("x")):
        with pytest.raises(AttributeError, match="capacity"):
            send()

    try:
        assert not system.parts.lifecycle.outstanding.turns()
        assert system.wait_idle(1)
    finally:
        system.parts.lifecycle.outstanding.fail_turns(ValueError("left behind"))
