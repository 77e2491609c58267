"""All nodes of a cluster have one model."""

import asyncio

import pytest
from machine import Machine

from kvactors.actors.cluster.protocol.errors import OtherModel


def test_a_node_whose_model_says_other_tokens_is_refused_while_others_are_there(
    machine: Machine,
) -> None:
    machine.ask("join", node="n1", incarnation=1, disk="d", tokenizer="t")
    machine.ask("join", node="n2", incarnation=1, disk="e", tokenizer="t")

    with pytest.raises(OtherModel, match="'n3' has another tokenizer than that of 'n1'"):
        machine.ask("join", node="n3", incarnation=1, disk="f", tokenizer="u")
    machine.restart()
    machine.ask("renew", node="n2", incarnation=1, load={"bytes": 0, "waiting": 0}, tokenizer="t")
    with pytest.raises(OtherModel):
        machine.ask("join", node="n3", incarnation=1, disk="f", tokenizer="u")
    for node in ("n1", "n2"):
        machine.ask("leave", node=node, incarnation=1)
    machine.ask("join", node="n3", incarnation=1, disk="f", tokenizer="u")


def test_of_two_that_come_at_once_one_is_refused(machine: Machine) -> None:
    async def both() -> list[object]:
        joins = [
            machine.directory.handle(
                "join", {"node": node, "incarnation": 1, "disk": node, "tokenizer": tokenizer}
            )
            for node, tokenizer in (("n1", "t"), ("n2", "u"))
        ]
        return list(await asyncio.gather(*joins, return_exceptions=True))

    found = machine.does(both())

    assert [isinstance(answer, OtherModel) for answer in found] == [False, True]
