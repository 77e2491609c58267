"""An agent whose records and KV were copied to another node goes on there as if it had never moved,
to the bit."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from conversations import chat_model
from hosts import LONG, SHORT, across, asked, copied, said
from layer_kinds import KINDS
from samples import sample_of

from kvactors.actors import Sampling
from kvactors.actors.cluster.host.host import SystemHost
from kvactors.actors.cluster.host.requests import ask_request
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer

OpenHost = Callable[..., SystemHost]
DRAWN = Sampling(max_tokens=12, temperature=1.0, seed=3, top_logprobs=4)
# Each kind of layer, plain and encrypted.
EVERY = [(kind, key) for kind in KINDS for key in (None, b"k" * 32)]
CASES = sample_of(EVERY, 10, "moved")
NAMES = [f"{kind}{', encrypted' if key else ''}" for kind, key in CASES]


def model_of(family: str) -> Callable[[], Any]:
    def make() -> Any:
        return build(family), PlainTokenizer()

    make.__name__ = family
    return make


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "key"), CASES, ids=NAMES)
def test_a_moved_agent_answers_as_an_unmoved_one_and_is_warm(
    open_host: OpenHost, kind: str, key: bytes | None
) -> None:
    model = model_of(KINDS[kind])
    one, two, unmoved = (
        open_host(name, model, encryption_key=key) for name in ("1", "2", "unmoved")
    )

    async def talk() -> None:
        for host in (one, unmoved):
            await host.begin("alice", {})
            await asked(host, "alice", LONG, "r1")
            await asked(host, "alice", [5, 6], "r2")
        await one.end("alice")

        await copied(one, two, "alice")
        await two.begin("alice", {})
        moved = await asked(two, "alice", [7, 8], "r3", sampling=DRAWN)
        stayed = await asked(unmoved, "alice", [7, 8], "r3", sampling=DRAWN)

        assert said(moved) == said(stayed)
        assert moved["logprobs"] == stayed["logprobs"]
        assert len(moved["logprobs"]) == len(moved["tokens"])
        assert (moved["cache"], stayed["cache"]) == ("warm", "hot")
        assert moved["usage"]["reused_tokens"] >= 256
        records = [await host.records("alice", 0) for host in (one, two, unmoved)]
        assert records[1] == records[2]
        assert records[0] == records[1][:2]

    asyncio.run(talk())


def test_a_replica_is_brought_what_is_new_and_goes_on_when_its_owner_is_gone(
    open_host: OpenHost,
) -> None:
    owner, replica, unmoved = (open_host(name, chat_model) for name in ("1", "2", "unmoved"))

    async def talk() -> None:
        written = asyncio.Queue[str]()
        owner.on_saved(written.put)
        counts = []
        for host in (owner, unmoved):
            await host.begin("alice", {"system_prompt": "You are Alice."})
        for n in range(3):
            request = f"turn {n} " * 30
            await asked(owner, "alice", request, f"r{n}")
            await asked(unmoved, "alice", request, f"r{n}")
            assert await written.get() == "alice"
            counts.append(await copied(owner, replica, "alice"))
        counts.append(await copied(owner, replica, "alice"))

        await replica.begin("alice", {"system_prompt": "You are Alice."})
        taken_over = await asked(replica, "alice", "and on", "r3")

        assert [records for records, _ in counts] == [1, 1, 1, 0]
        assert [pieces > 0 for _, pieces in counts] == [True, True, True, False]
        assert taken_over["cache"] == "warm"
        assert said(taken_over) == said(await asked(unmoved, "alice", "and on", "r3"))

    asyncio.run(talk())


def test_a_request_that_is_asked_again_elsewhere_is_answered_and_not_taken(
    open_host: OpenHost,
) -> None:
    one, two = open_host("1", chat_model), open_host("2", chat_model)

    async def talk() -> None:
        await one.begin("alice", {})
        answers = [await asked(one, "alice", "hello", "r1") for _ in range(2)]
        await asked(one, "alice", "and on", "r2")
        await copied(one, two, "alice")
        knows = [await two.knows("alice", request) for request in ("r1", "r2", "r3")]
        await two.begin("alice", {})
        answers.append(await asked(two, "alice", "hello", "r1"))
        pieces: list[Any] = []
        request = across(ask_request("hello", request_id="r1", sampling=SHORT))
        answers.append(across(await two.turn("alice", request, pieces.append)))

        assert knows == [True, True, False]
        assert [answer["recorded"] for answer in answers] == [False, True, True, True]
        assert len({repr(said(answer)) for answer in answers}) == 1
        assert "".join(piece["text"] for piece in pieces) == answers[0]["text"]
        assert (await one.stored(), await two.stored()) == ({"alice": 2}, {"alice": 2})

    asyncio.run(talk())


def test_without_its_kv_a_moved_agent_is_cold_and_says_the_same(open_host: OpenHost) -> None:
    one, two, unmoved = (open_host(name) for name in ("1", "2", "unmoved"))

    async def talk() -> None:
        for host in (one, unmoved):
            await host.begin("alice", {})
            await asked(host, "alice", LONG, "r1")
        await two.store("alice", 0, await one.records("alice", 0))
        await two.begin("alice", {})

        moved = await asked(two, "alice", [7, 8], "r2")

        assert moved["cache"] == "cold"
        assert said(moved) == said(await asked(unmoved, "alice", [7, 8], "r2"))

    asyncio.run(talk())
