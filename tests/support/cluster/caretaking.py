"""A caretaker of places that a test makes up, whose nodes do what they are asked."""

from machine import SETTINGS, Answering, Machine

from kvactors.actors.cluster.protocol.directory.caretaker import Caretaker
from kvactors.actors.cluster.protocol.directory.members import Members
from kvactors.actors.cluster.protocol.directory.moves import Moves
from kvactors.actors.cluster.protocol.directory.placement import Load
from kvactors.actors.cluster.protocol.directory.places import Places
from kvactors.actors.cluster.protocol.directory.registry import Registry
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.cluster.protocol.locks import Locks
from kvactors.actors.cluster.protocol.records import Member, Place

__all__ = ["Round", "place"]


class Nobody(Answering):
    async def answer(self, method: str, asked: Record) -> Record:
        return {}


class Counting(Members):
    """Counts how often the room that it tells of is `changed` by whoever plans."""

    changed = 0

    def room(self) -> dict[str, Load]:
        counting = self

        class Room(dict[str, Load]):
            def __setitem__(self, node: str, load: Load) -> None:
                counting.changed += 1
                super().__setitem__(node, load)

        return Room(super().room())


class Round:
    """A caretaker of these places on these nodes."""

    def __init__(self, machine: Machine, places: list[Place], *nodes: Member) -> None:
        self._machine, locks, clock = machine, Locks(), machine.clock
        self.registry = Registry(machine.journal)
        self.members = members = Counting(self.registry, clock, SETTINGS, self._changed)
        there = Places(self.registry, members, locks, self._changed)
        nobody, begun = Nobody(), list[str]()
        moves = Moves(
            self.registry, there, locks, nobody, clock, settings=SETTINGS, begun=begun.append
        )
        self.caretaker = Caretaker(self.registry, members, there, moves, nobody, settings=SETTINGS)
        machine.does(self.registry.note(places=places, members=nodes))

    def goes(self, times: int = 1) -> None:
        for _ in range(times):
            self._machine.does(self.caretaker.round())

    def _changed(self) -> None:
        self.caretaker.look()


def place(agent: str, node: str, replica: str | None) -> Place:
    return Place(agent, node, 1, 2, replica, None, 1)
