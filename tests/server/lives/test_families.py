"""A main agent and its sub-agents: what they have in common is computed once, whoever is busy."""

import asyncio
from typing import Any

import httpx
import pytest
from chats import WAIT, asked, post, until, url
from inside import system_of
from seeded import bug, seeded

from kvactors.actors.frontends.server.identity.resolve import Resolver
from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.testing import FaultyModel

RULES = "You are a careful agent. " * 60
TOOLS = [{"name": "read", "description": "Reads. " * 40, "input_schema": {"type": "object"}}]
BLOCK = 256
SUBS = 4


def body(text: str, nonce: str, day: str = "2026-11-22", rules: str = RULES) -> dict[str, Any]:
    """What Claude Code sends: the first line is another one each time."""
    parts = (f"x-anthropic-billing-header: cch={nonce};", f"{rules}\nToday's date: {day}")
    return {
        "model": "any",
        "max_tokens": 8,
        "temperature": 0,
        "system": [{"type": "text", "text": part} for part in parts],
        "messages": [{"role": "user", "content": text}],
        "tools": TOOLS,
    }


async def ask(client: httpx.AsyncClient, server: Server, name: str, **said: str) -> httpx.Response:
    headers = {"x-claude-code-session-id": "one"}
    if name:
        headers["x-claude-code-agent-id"] = name
    asked = body(**said)
    return await client.post(f"{server.url}/v1/messages", json=asked, headers=headers)


def family(server: Server, model: FaultyModel, day: str = "2026-11-22") -> list[httpx.Response]:
    """A main agent's first answer; then sub-agents ask while it is answering again."""

    async def all_of_them() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=WAIT) as client:
            await ask(client, server, "", text="Begin.", nonce="0")
            gate = model.hold()
            main = asyncio.create_task(ask(client, server, "", text="Go on.", nonce="1"))
            await asyncio.to_thread(model.reached.wait, WAIT)
            subs = [
                asyncio.create_task(
                    ask(client, server, f"sub-{n}", text=f"Part {n}.", nonce=f"2{n}", day=day)
                )
                for n in range(SUBS)
            ]
            await until(server, SUBS + 1)
            gate.set()
            await main
            return [await sub for sub in subs]

    return asyncio.run(all_of_them())


def test_sub_agents_begin_with_what_the_main_agent_was_told_while_it_is_busy(
    server: Server, model: FaultyModel
) -> None:
    for answer in family(server, model):
        used = answer.json()["usage"]
        assert used["cache_read_input_tokens"] > len(RULES)
        assert used["input_tokens"] < BLOCK
        assert "billing-header" in answer.headers["x-kvactors-kept"]


def test_sub_agents_that_begin_in_another_way_compute_that_once(
    server: Server, model: FaultyModel
) -> None:
    rules = "You are another agent. " * 60

    async def all_of_them() -> list[httpx.Response]:
        async with httpx.AsyncClient(timeout=WAIT) as client:
            await ask(client, server, "", text="Begin.", nonce="0")
            gate = model.hold()
            subs = [
                asyncio.create_task(
                    ask(client, server, f"sub-{n}", text=f"Part {n}.", nonce=f"2{n}", rules=rules)
                )
                for n in range(SUBS)
            ]
            await until(server, SUBS)
            gate.set()
            return [await sub for sub in subs]

    answers = asyncio.run(all_of_them())

    known = [answer.json()["usage"]["cache_read_input_tokens"] for answer in answers]
    assert sum(cached > len(rules) for cached in known) == SUBS - 1


def test_a_sub_agent_is_told_what_has_changed(server: Server, model: FaultyModel) -> None:
    (first, *_) = family(server, model, day="2026-11-23")

    agent = system_of(server).spawn(first.headers["x-kvactors-agent"])
    told = agent.transcript().text

    assert "2026-11-22" in told
    assert told.index("2026-11-23") > told.index("2026-11-22")
    assert "date" in first.headers["x-kvactors-kept"]


@pytest.mark.slow
def test_a_family_that_shares_nothing_is_seen(server: Server, model: FaultyModel) -> None:
    @bug(Resolver, "_twin")
    def nobody(_true: Any) -> Any:
        return lambda *_args: None

    @bug(Resolver, "_as_begun")
    def in_its_own_words(_true: Any) -> Any:
        return lambda _self, said, *_of: (said, said.told)

    with seeded(nobody), seeded(in_its_own_words), pytest.raises(AssertionError):
        test_sub_agents_begin_with_what_the_main_agent_was_told_while_it_is_busy(server, model)


@pytest.mark.parametrize(
    "nonce", ["", "x-anthropic-billing-header: cch={};\n"], ids=["alike", "but-for-a-nonce"]
)
def test_conversations_that_begin_alike_and_at_once_compute_it_once(
    server: Server, model: FaultyModel, nonce: str
) -> None:
    async def all_at_once() -> list[httpx.Response]:
        gate = model.hold()
        async with httpx.AsyncClient(timeout=WAIT) as client:
            asks = []
            for number in range(SUBS):
                said = [
                    {"role": "system", "content": nonce.format(number) + RULES},
                    {"role": "user", "content": f"{number}."},
                ]
                body = asked("", messages=said, max_tokens=6)
                asks.append(asyncio.create_task(client.post(url(server), json=body)))
            await until(server, SUBS)
            gate.set()
            return [await one for one in asks]

    answers = asyncio.run(all_at_once())

    known = [answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert sum(cached > len(RULES) - BLOCK for cached in known) == SUBS - 1
    assert system_of(server).stats()["prefilled_tokens"] < len(RULES) + SUBS * BLOCK
    named = ["billing-header" in answer.headers.get("x-kvactors-kept", "") for answer in answers]
    assert sum(named) == (SUBS - 1 if nonce else 0)


def test_what_an_answer_says_was_known_has_the_beginning_that_it_shares(server: Server) -> None:
    system = {"role": "system", "content": RULES}

    def begun(text: str) -> httpx.Response:
        said = [system, {"role": "user", "content": text}]
        return post(server, {"messages": said, "max_tokens": 4})

    begun("Begin.")
    other = begun("Another one.")

    known = other.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert known >= len(RULES)
    assert other.headers["x-kvactors-reused"] == f"{known} tokens, forked"
