"""Behaviours of different nodes that wait for each other."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from talking import Gate
from together import LOOK, Together

from kvactors import AskCycle, Supervision
from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.member.circles import Circles, new_ticket
from kvactors.actors.cluster.protocol.records import Settings
from kvactors.actors.runtime.waits import Answer, Waiter, Waits

WAIT = 60
GOES_ON = Supervision("restart", backoff=0)


@pytest.fixture(scope="module")
def talkers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ClusterAgent]]:
    """Some that ask, a and c on one node and b on the other, which has a gate, too."""
    nodes = Together(tmp_path_factory.mktemp("circles"), "one", "two")
    made = {}
    try:
        for name, kind, node in (
            ("a", "Talker", "one"),
            ("b", "Talker", "two"),
            ("c", "Talker", "one"),
            ("gate", "Gate", "two"),
        ):
            behaviour = f"talking:{kind}"
            made[name] = nodes.cluster.spawn(
                name, group=name, behaviour=behaviour, supervision=GOES_ON
            )
            assert nodes.cluster.migrate(name, node).node == node
        yield made
    finally:
        nodes.close()


@pytest.mark.parametrize("others", ["ba", "bca"])
def test_an_ask_that_closes_a_circle_raises_and_nobody_waits(
    talkers: dict[str, ClusterAgent], others: str
) -> None:
    asked = talkers["a"].request(["through", *others])

    with pytest.raises(
        AskCycle, match=r"would wait for each other's answers for ever: '[abc]' -> "
    ):
        asked.get(timeout=WAIT)
    assert talkers["a"].request(["heard"]).get(timeout=WAIT) == []


def test_who_waits_long_for_somebody_who_is_busy_is_answered(
    talkers: dict[str, ClusterAgent],
) -> None:
    Gate.opened.clear()
    try:
        asked = talkers["a"].request(["question", "b", ["question", "gate", "Biscuit"]])
        assert Gate.entered.wait(WAIT)
        with pytest.raises(TimeoutError):
            asked.get(timeout=4 * LOOK)
    finally:
        Gate.opened.set()

    assert asked.get(timeout=WAIT) in ("length", "stop")


def test_a_wait_with_a_limit_ends_by_that(talkers: dict[str, ClusterAgent]) -> None:
    circle = ["question", "b", ["question", "a", ["heard"], 3 * LOOK]]

    kind, _ = talkers["a"].request(circle).get(timeout=WAIT)

    assert kind == "TurnTimeout"


class Others:
    """What nodes say of the waits that depend on an ask: each time the next of these; and who owns
    an agent."""

    def __init__(self, *said: list[tuple[str, str]]) -> None:
        self.said = list(said)

    async def find(self, agent: str) -> tuple[str, int]:
        return agent, 1

    async def call(self, to: str, method: str, record: Any, *, within: float) -> Any:
        return {"waits": self.said.pop(0)}


class Watched:
    """One that has waited long, and looks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits = Waits(lambda: self.now)
        self.answer = Answer(self.waits, "b", None)
        self.answer.ticket = new_ticket()

    async def looks(self, others: Others) -> bool:
        """Whether it was told that it is in a circle."""
        circles = Circles(self.waits, others, others, Settings(look=LOOK))  # type: ignore[arg-type]
        with self.waits.waiting(Waiter(self.waits, "a", "a"), self.answer):
            self.now += 2 * LOOK
            looking = asyncio.create_task(circles.run())
            while others.said and not self.answer.done:
                await asyncio.sleep(LOOK / 50)
            await asyncio.sleep(LOOK / 10)
            looking.cancel()
        return self.answer.done


def test_a_circle_is_one_that_is_seen_twice() -> None:
    async def run() -> None:
        watched = Watched()
        own, older = ("b", watched.answer.ticket), ("c", "0")
        changed = Others([older], [own], [("c", "00")], [own])

        assert not await watched.looks(changed)
        assert await watched.looks(Others([older], [own], [older], [own]))

    asyncio.run(run())


def test_the_youngest_ask_of_a_circle_is_the_one_that_raises() -> None:
    async def run() -> None:
        watched = Watched()
        own, younger = ("b", watched.answer.ticket), ("c", new_ticket())

        assert not await watched.looks(Others([younger], [own], [younger], [own]))

    asyncio.run(run())


def test_who_waits_for_others_in_a_circle_is_not_in_it() -> None:
    async def run() -> None:
        watched = Watched()

        assert not await watched.looks(Others([("c", "1")], [("d", "2")], [("c", "1")]))

    asyncio.run(run())
