"""A cluster's handle does what a local one does: turns end early, are taken back, and forked."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvactors import Cluster, ClusterAgent
from kvactors.actors.cluster.agents.streams import AsyncClusterStream
from kvactors.actors.cluster.protocol.errors import AgentExists, UnknownAgent
from kvactors.actors.testing import FaultyModel
from kvactors.core.errors import InvalidConfig, InvalidInput, RewindOutOfRange, TurnTimeout
from kvactors.core.schedule.sampling import Sampling

FACT = "My cat is called Biscuit."
QUESTION = "What is my cat called?"
ANSWER = "Your cat is called Biscuit."
LONG = Sampling(max_tokens=5000)
WAIT = 60


@pytest.fixture
def model() -> FaultyModel:
    return FaultyModel()


@pytest.fixture
def held(model: FaultyModel, tmp_path: Path) -> Iterator[ClusterAgent]:
    """An agent whose turns run until the model's gate is opened."""
    with Cluster.local(model, store=tmp_path / "held") as cluster:  # type: ignore[arg-type]
        yield cluster.spawn("ada")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster.local(store=tmp_path / "store") as cluster:
        yield cluster


def turns(agent: ClusterAgent) -> list[str]:
    return [turn.text for turn in agent.transcript().turns if turn.role == "user"]


def test_a_stream_that_is_left_cancels_its_turn_on_its_node(
    model: FaultyModel, held: ClusterAgent
) -> None:
    with held.stream([1, 8], sampling=LONG) as stream:
        next(stream)
        gate = model.hold()
        model.reached.wait(WAIT)
    gate.set()

    reply = stream.reply

    assert reply.finish_reason == "cancelled"
    assert 0 < len(reply.token_ids) < LONG.max_tokens
    assert [turn.token_ids for turn in held.transcript().turns] == [(1, 8), reply.token_ids]


@pytest.mark.parametrize("how", ["close", "let go", "cancel"])
def test_so_does_one_under_asyncio_however_it_is_left(
    model: FaultyModel, held: ClusterAgent, how: str
) -> None:
    async def talk() -> None:
        stream = held.stream_async([1, 8], sampling=LONG, request_id="r1")
        await anext(stream)
        gate = model.hold()
        await asyncio.to_thread(model.reached.wait, WAIT)
        leaving = asyncio.create_task(stream.aclose() if how == "close" else _read(stream))
        await asyncio.sleep(0)
        if how != "close":
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
        gate.set()
        if how == "close":
            await leaving

    async def lets_go() -> None:
        stream = held.stream_async([1, 8], sampling=LONG, request_id="r1")
        await anext(stream)

    asyncio.run(lets_go() if how == "let go" else talk())

    assert held.ask([1, 8], request_id="r1").get(timeout=WAIT).finish_reason == "cancelled"


async def _read(stream: AsyncClusterStream) -> None:
    async for _ in stream:
        pass


def test_a_cancelled_task_cancels_its_turn(model: FaultyModel, held: ClusterAgent) -> None:
    async def talk() -> None:
        gate = model.hold()
        task = asyncio.create_task(held.ask_async([1, 8], sampling=LONG, request_id="r1"))
        await asyncio.to_thread(model.reached.wait, WAIT)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()

    asyncio.run(talk())

    reply = held.ask([1, 8], request_id="r1").get(timeout=WAIT)
    assert (reply.finish_reason, reply.recorded) == ("cancelled", True)


def test_cancel_ends_what_runs_and_the_next_goes_on(model: FaultyModel, held: ClusterAgent) -> None:
    gate = model.hold()
    first = held.ask([1, 2], sampling=LONG)
    model.reached.wait(WAIT)
    second = held.ask([3, 4], sampling=Sampling(max_tokens=4))

    held.cancel()
    gate.set()

    assert first.get(timeout=WAIT).finish_reason == "cancelled"
    assert second.get(timeout=WAIT).finish_reason == "length"


@pytest.mark.parametrize(
    "ask",
    [
        lambda agent: agent.ask([3, 4], timeout=0.1).get(timeout=5),
        lambda agent: list(agent.stream([3, 4], timeout=0.1)),
    ],
)
def test_the_timeout_of_a_turn_bounds_its_wait_for_those_before_it(
    model: FaultyModel, held: ClusterAgent, ask: Callable[[ClusterAgent], object]
) -> None:
    gate = model.hold()
    first = held.ask([1, 2], sampling=Sampling(max_tokens=4))
    model.reached.wait(WAIT)

    try:
        with pytest.raises(TurnTimeout, match=r"0\.1 s"):
            ask(held)
    finally:
        gate.set()

    first.get(timeout=WAIT)
    held.ask([5, 6], sampling=Sampling(max_tokens=4)).get(timeout=WAIT)
    asked = [turn.token_ids for turn in held.transcript().turns if not turn.is_answer]
    assert asked == [(1, 2), (5, 6)]


def test_a_stream_that_nobody_reads_keeps_nobody_waiting(cluster: Cluster) -> None:
    agent = cluster.spawn("ada")

    stream = agent.stream(FACT)
    answered = agent.ask("And my dog?").get(timeout=WAIT)

    assert answered.text
    assert turns(agent) == [FACT, "And my dog?"]
    assert "".join(piece.text for piece in stream) == stream.reply.text


def test_what_is_taken_back_is_remembered_no_more(cluster: Cluster) -> None:
    agent = cluster.spawn("ada", system_prompt="You answer from memory.")
    agent.ask(FACT).get(timeout=WAIT)
    agent.ask("My cat is called Tom.").get(timeout=WAIT)

    rewound = [agent.rewind(request_id="back").get(timeout=WAIT) for _ in range(2)]

    assert [one.turns for one in rewound] == [2, 2]
    assert rewound[0].durable.get(timeout=WAIT)
    assert rewound[0].tokens == len(agent.transcript().token_ids)
    assert agent.ask(QUESTION).get(timeout=WAIT).text == ANSWER
    with pytest.raises(RewindOutOfRange):
        agent.rewind(99).get(timeout=WAIT)
    with pytest.raises(InvalidInput, match="not both"):
        agent.rewind(1, to_token=1)
    assert agent.rewind(to_token=0).get(timeout=WAIT).turns == 0
    assert turns(agent) == []


def test_a_fork_has_what_its_parent_was_told_so_far_and_is_hot(cluster: Cluster) -> None:
    parent = cluster.spawn("ada", system_prompt="You answer from memory.", group="market")
    parent.tell(FACT)

    child = cluster.spawn("bob", from_=parent)
    other = cluster.spawn("eve", from_="ada")
    parent.rewind().get(timeout=WAIT)

    for fork in (child, other):
        reply = fork.ask(QUESTION).get(timeout=WAIT)
        assert (reply.text, reply.cache) == (ANSWER, "hot")
        assert cluster.place(fork.agent_id).group == "market"
    assert turns(child) == [FACT, QUESTION]
    assert turns(parent) == []
    assert cluster.spawn("bob").agent_id == "bob"


def test_a_fork_that_cannot_be_is_refused(cluster: Cluster) -> None:
    parent = cluster.spawn("ada")

    with pytest.raises(InvalidConfig, match="leave them unset"):
        cluster.spawn("bob", "You are Bob.", from_=parent)
    with pytest.raises(InvalidConfig, match="leave them unset"):
        cluster.spawn("bob", from_=parent, group="market")
    with pytest.raises(UnknownAgent, match="nobody"):
        cluster.spawn("bob", from_="nobody")
    with pytest.raises(AgentExists):
        cluster.spawn("ada", from_="ada")
    assert cluster.find("bob") is None
