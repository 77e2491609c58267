"""A node by itself, before a directory that says what a test wants."""

from dataclasses import replace

from machine import SETTINGS, Machine

from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.node.server import Node
from kvactors.actors.cluster.protocol.records import Place
from kvactors.actors.cluster.testing.host import texts

ALONE = replace(SETTINGS, durable="one")


class Places:
    """A directory's answers to n1, whose agents were all `born` in one epoch."""

    def __init__(self, born: int) -> None:
        self.born = born

    async def call(self, _: str, method: str, asked: Record, **__: object) -> Record:
        if method == "claim":
            epoch = self.born + 1
            return Place(asked["agent"], "n1", 1, epoch, None, None, self.born).to_record()
        return {}


def turn(text: str) -> Record:
    return {"agent": "alice", "request": {"id": f"r-{text}", "text": text}}


def test_a_name_that_is_used_again_is_served_where_the_last_is_still_in_memory(
    machine: Machine,
) -> None:
    places = Places(born=1)
    node = Node("n1", places, machine.clock, machine.journal, machine.host, settings=ALONE)
    machine.does(node.begin())
    first = machine.does(node.handle("turn", turn("in the first life")))

    # It stood still past its lease: others served it, and forgot it.
    places.born = 5
    machine.does(node.begin())
    second = machine.does(node.handle("turn", turn("in the second")))

    assert [first["answer"]["index"], second["answer"]["index"]] == [0, 0]
    assert texts(machine.disk.files["aside"]) == ["in the first life"]
