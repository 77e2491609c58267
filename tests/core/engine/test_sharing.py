"""One beginning, many agents: forks and equal system prompts hold KV once, and nobody can tell."""

import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from makers import LoadGrid, MakeEngine, OpenSystem, prompt_of
from small_tokenizers import build, chat_format

from kvactors.actors import AgentExists, AgentNotStored, AgentSystem, Reply, Sampling
from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.testing import use_actors
from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.errors import InvalidAgentId, InvalidConfig, InvalidInput
from kvactors.core.schedule.events import Finished, KVNeeded
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import grid, snap_to_grid, tiny_model

WAIT = 60
ANSWER = Sampling(max_tokens=6)
SYSTEM = "You keep what you are told, word by word, and you answer from memory alone. " * 14


def chat_model() -> tuple[Any, Any]:
    model = snap_to_grid(tiny_model(seed=5, vocab_size=build("bytes").get_vocab_size()))
    return model, chat_format("bytes", "chatml").tokenizer


def told_alone(system: AgentSystem, tokens: tuple[int, ...], answer: tuple[int, ...]) -> bool:
    """Whether an agent that is told the same tokens at once answers the same."""
    alone = system.spawn("alone")
    try:
        prompt = list(tokens[: len(tokens) - len(answer)])
        reply: Reply = alone.ask(prompt, sampling=ANSWER).get(timeout=WAIT)
        return reply.token_ids == answer
    finally:
        system.forget("alone")


def test_who_has_more_than_the_system_prompt_in_the_store_is_restored_beside_others_who_share_it(
    load_grid: LoadGrid,
) -> None:
    engine = Engine(load_grid(), EngineConfig(4, 1 << 28, stored=True))
    beginning, document, stored = prompt_of(100), prompt_of(600, seed=1), list[Segment]()

    def turn(name: str, known: list[int], new: list[int]) -> Finished:
        request = make_request(name, known, new, ANSWER)
        request.shared, request.prompt_hash, request.tenant = len(beginning), "the same", ""
        (end,) = run_engine(engine, [(0, request)], stored={"warm": stored}).values()
        engine.saved(name, sum(part.nbytes for part in end.exported))
        return end

    stored += turn("warm", [], [*beginning, *document]).exported
    engine.memory.hot.drop("warm")
    turn("other", [], [*beginning, 9, 9, 9])
    end = turn("warm", [*beginning, *document], [8, 8, 8])

    assert end.request.cache_state == "warm"
    assert end.request.kept >= 512

    # Nor does it wait for somebody who is just prefilling that prompt.
    for name in ("warm", "other"):
        engine.memory.hot.drop(name)
    for name, known in (("third", []), ("warm", [*beginning, *document])):
        request = make_request(name, known, [*beginning, 7] if not known else [7], ANSWER)
        request.shared, request.prompt_hash, request.tenant = len(beginning), "the same", ""
        engine.submit(request)
    assert KVNeeded("warm") in engine.step()


# -- forks ---------------------------------------------------------------------------------


def test_a_fork_begins_with_its_parents_memory_and_copies_no_block(
    open_system: OpenSystem,
) -> None:
    system = open_system(grid, attention="packed")
    alice = system.spawn("alice")
    alice.ask([3, 1, 4] * 200, sampling=ANSWER).get(timeout=WAIT)
    before = system.stats()["hot_bytes"]

    bob = system.spawn("bob", from_="alice")

    assert bob.transcript() == alice.transcript()
    assert system.stats()["hot_bytes"] == before
    first = bob.ask([7], sampling=ANSWER).get(timeout=WAIT)
    assert first.cache == "hot"
    assert first.usage.prefilled_tokens <= 2
    assert told_alone(system, bob.transcript().token_ids, first.token_ids)
    other = alice.ask([9], sampling=ANSWER).get(timeout=WAIT)
    assert told_alone(system, alice.transcript().token_ids, other.token_ids)


@pytest.mark.parametrize("gone", ["parent", "child"])
def test_after_a_restart_either_may_be_forgotten_first(open_system: OpenSystem, gone: str) -> None:
    system = open_system(grid, attention="packed")
    system.spawn("parent").ask([3, 1, 4] * 200, sampling=ANSWER).get(timeout=WAIT)
    system.spawn("child", from_="parent")
    system.stop(timeout=WAIT)

    again = open_system(grid, attention="packed")
    again.forget(gone)
    left = again.spawn("child" if gone == "parent" else "parent")
    reply = left.ask([5], sampling=ANSWER).get(timeout=WAIT)
    assert reply.cache == "warm"
    assert told_alone(again, left.transcript().token_ids, reply.token_ids)


def test_a_warm_parent_is_forked_on_disk(open_system: OpenSystem, tmp_path: Path) -> None:
    first = open_system(grid)
    first.spawn("alice").ask([3] * 600, sampling=ANSWER).get(timeout=WAIT)
    first.stop(timeout=WAIT)
    second = open_system(grid)
    second.spawn("bob", from_="alice")
    linked = [path.stat().st_nlink for path in (tmp_path / "store").rglob("seg-*")]
    assert linked
    assert set(linked) == {2}
    assert second.spawn("bob").ask([5], sampling=ANSWER).get(timeout=WAIT).cache == "warm"


def test_a_fork_makes_a_new_agent_or_says_why_not(open_system: OpenSystem) -> None:
    system = open_system(grid)
    system.spawn("alice").ask([3], sampling=ANSWER).get(timeout=WAIT)
    with pytest.raises(AgentExists):
        system.spawn("alice", from_="alice")
    with pytest.raises(InvalidConfig, match="parent's system prompt"):
        system.spawn("bob", "be brief", from_="alice")
    with pytest.raises(AgentNotStored, match="no agent 'alcie' to fork"):
        system.spawn("bob", from_="alcie")
    assert [agent.agent_id for agent in system.agents()] == ["alice"]
    assert system.spawn("bob", from_="alice").ask([4], sampling=ANSWER).get(timeout=WAIT)
    with pytest.raises(AgentExists):
        system.spawn("bob", from_="alice")


def test_a_fork_takes_no_parent_that_is_no_agent_of_the_system(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system, other = open_system(grid), open_system(grid, store=tmp_path / "other")
    stranger = other.spawn("stranger")
    stranger.ask([3], sampling=ANSWER).get(timeout=WAIT)
    with pytest.raises(InvalidInput, match="'stranger' belongs to another system"):
        system.spawn("bob", from_=stranger)
    with pytest.raises(InvalidAgentId, match="int"):
        system.spawn("bob", from_=5)  # type: ignore[arg-type]
    assert system.spawn("bob").transcript().turns == ()
    other.stop(timeout=WAIT)
    assert open_system(grid, store=tmp_path / "other").spawn("bob").transcript().turns == ()


def test_a_fork_of_an_empty_parent_does_not_take_the_place_of_a_stored_agent(
    open_system: OpenSystem,
) -> None:
    first = open_system(grid)
    first.spawn("bob").ask([3], sampling=ANSWER).get(timeout=WAIT)
    first.stop(timeout=WAIT)

    second = open_system(grid)
    second.spawn("alice")
    with pytest.raises(AgentExists, match="bob"):
        second.spawn("bob", from_="alice")
    assert len(second.spawn("bob").transcript().turns) == 2


def test_a_fork_whose_agent_cannot_begin_leaves_nothing_in_the_store(
    open_system: OpenSystem,
) -> None:
    class Stillborn(AgentActor):
        def __init__(self, agent_id: str, *args: Any) -> None:
            super().__init__(agent_id, *args)
            if agent_id == "child" and broken:
                raise RuntimeError("on purpose")

    broken = [True]
    system = open_system(prepare=partial(use_actors, agent=Stillborn))
    alice = system.spawn("alice")
    alice.ask([1, 2], sampling=ANSWER).get(timeout=WAIT).durable.get(timeout=WAIT)

    with pytest.raises(RuntimeError, match="on purpose"):
        system.spawn("child", from_=alice)
    broken.clear()

    child = system.spawn("child", from_=alice)
    assert child.transcript() == alice.transcript()


def test_two_forks_at_once_make_one_child(open_system: OpenSystem) -> None:
    system = open_system(grid, store=False)
    alice = system.spawn("alice")
    running = alice.ask([3], sampling=Sampling(max_tokens=2000))
    made: list[object] = []

    def fork() -> None:
        try:
            made.append(system.spawn("bob", from_=alice))
        except AgentExists as error:
            made.append(error)
            alice.cancel()  # Lets the fork that waits go on.

    threads = [threading.Thread(target=fork) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)

    running.get(timeout=WAIT)
    assert sorted(type(one).__name__ for one in made) == ["Agent", "AgentExists"]
    assert system.spawn("bob") in made


def test_a_fork_of_an_agent_without_turns_is_empty(open_system: OpenSystem) -> None:
    system = open_system(chat_model)
    system.spawn("alice", "be brief")
    bob = system.spawn("bob", from_="alice")
    assert bob.transcript().turns == ()
    assert bob.system_prompt == "be brief"


def test_what_others_hold_too_is_not_what_leaving_would_free(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine, hot = (made := make_engine(load_grid())), made.memory.hot
    run_engine(engine, [(0, make_request("parent", [], prompt_of(600), ANSWER))])
    alone = hot.held.nbytes

    hot.fork("parent", "child")
    forked = own_bytes(engine)
    known = hot.touch("child").tokens
    run_engine(engine, [(0, make_request("child", known, prompt_of(300, seed=1), ANSWER))])
    apart = own_bytes(engine)
    hot.drop("child")

    assert forked == {"parent": 0, "child": 0}
    # The tail of the parent is no part of a block that has grown.
    assert 0 < apart["parent"] < apart["child"] < alone
    assert own_bytes(engine) == {"parent": hot.held.nbytes} == {"parent": alone}


def own_bytes(engine: Engine) -> dict[str, int]:
    return {idle.agent_id: idle.nbytes for idle in engine.memory.hot.idle(())}


# -- equal system prompts ------------------------------------------------------------------


def ask_all(system: AgentSystem, agents: int) -> list[Any]:
    asked = [
        system.spawn(f"agent {n}", SYSTEM).ask(f"I am number {n}.", sampling=ANSWER)
        for n in range(agents)
    ]
    return [reply.get(timeout=WAIT) for reply in asked]


def test_a_prompt_that_is_all_of_the_system_prompts_beginning_is_answered(
    open_system: OpenSystem,
) -> None:
    system = open_system(grid, attention="packed")

    reply = system.spawn("a", system_prompt="s" * 100).ask([ord("s")] * 80, sampling=ANSWER)

    assert reply.get(timeout=WAIT).usage.prefilled_tokens == 80


def test_agents_with_one_system_prompt_prefill_it_once_and_answer_as_if_alone(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    agents = 8
    shared = open_system(chat_model, attention="packed")
    replies = ask_all(shared, agents)
    whole = max(reply.usage.prompt_tokens for reply in replies)
    prefilled = sum(reply.usage.prefilled_tokens for reply in replies)
    assert prefilled < whole + agents * 40
    stats = shared.stats()
    assert stats["shared_tokens"] > (agents - 1) * (whole - 60)
    full_blocks = whole // 256 * 256 * 320
    assert stats["hot_bytes"] < full_blocks + agents * (whole * 320 - full_blocks + 40 * 320)
    shared.stop(timeout=WAIT)
    linked = {path.stat().st_nlink for path in (tmp_path / "store").rglob("seg-0-*")}
    assert linked == {agents}

    strict = open_system(chat_model, store=False, attention="packed", isolation="strict")
    apart = ask_all(strict, agents)
    assert strict.stats()["shared_tokens"] == 0
    assert [reply.token_ids for reply in apart] == [reply.token_ids for reply in replies]
