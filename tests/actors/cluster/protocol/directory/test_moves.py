"""Whom a person may send where, and why not."""

import asyncio
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from machine import Machine

from kvactors.actors.cluster.protocol.directory.driver import TRIES, Driver
from kvactors.actors.cluster.protocol.errors import NodeUnavailable, UnknownNode, Unreachable
from kvactors.actors.cluster.protocol.records import Move


def test_a_node_that_takes_nobody_is_told_from_one_that_never_came(machine: Machine) -> None:
    machine.joins("n1")
    machine.spawns()
    machine.joins("n2", "n3")
    machine.ask("drain", node="n2", on=True)
    machine.ask("leave", node="n3", incarnation=1)

    with pytest.raises(UnknownNode, match="no node 'n4' has joined"):
        machine.ask("move", agent="alice", target="n4")
    for target in ("n2", "n3"):
        with pytest.raises(NodeUnavailable, match=f"'{target}' takes no agents: it is away or d"):
            machine.ask("move", agent="alice", target=target)
    assert machine.ask("moved", agent="alice")["over"]


def test_a_move_is_tried_as_often_whatever_failed_for_who_had_the_name_before() -> None:
    given_up = list[str]()

    class Failing:
        moves: ClassVar = {"alice": Move("alice", "n2")}

        def takes(self, _: str) -> bool:
            return True

        async def settled(self, _: str) -> Any:
            return SimpleNamespace(node="n1")

        async def bring(self, *_: Any) -> None:
            raise Unreachable(to="n2", method="bring")

        async def give_up(self, agent: str) -> None:
            given_up.append(agent)

    async def live() -> None:
        failing: Any = Failing()
        driver = Driver(failing, failing, failing, 1)

        async def rounds(count: int) -> None:
            for _ in range(count):
                await driver.round()
                for _ in range(10):
                    await asyncio.sleep(0)

        await rounds(TRIES - 1)
        move = failing.moves.pop("alice")
        await rounds(1)
        failing.moves["alice"] = move
        await rounds(TRIES - 1)
        assert not given_up
        await rounds(1)

    asyncio.run(live())

    assert given_up == ["alice"]
