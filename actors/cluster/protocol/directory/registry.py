"""What the directory must not forget, over its journal."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any

from kvactors.actors.cluster.protocol.directory.index import Index
from kvactors.actors.cluster.protocol.directory.names import Names
from kvactors.actors.cluster.protocol.errors import Unreachable
from kvactors.actors.cluster.protocol.interfaces import Journal, Record
from kvactors.actors.cluster.protocol.records import Member, Move, Place, Plain
from kvactors.actors.cluster.protocol.whole_journal import WholeJournal

__all__ = ["Registry", "next_epoch"]

# A journal is written anew where it has so many times the things that its state needs.
WASTE = 4
# Of those in one record, then.
TOGETHER = 1_000
# What a record may have.
KEYS = "places", "members", "moves", "moved", "gone", "stays", "untold", "told", "epochs"


class Registry:
    """Places, members and moves. `note` writes a change and then makes it: nothing is acted upon
    that a restart would not know.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = WholeJournal(journal, *KEYS)
        self.places: dict[str, Place] = {}
        self.names = Names()
        self.members: dict[str, Member] = {}
        self.moves: dict[str, Move] = {}
        self.gone: dict[str, int] = {}
        # Nodes that have not said yet which agents were in their stores when they came.
        self.untold: set[str] = set()
        # Held while one more comes, and while it is decided for all that came who has an agent.
        self.coming = asyncio.Lock()
        # Where a person has put agents: they stay there until their node is drained or lost.
        self.stays: dict[str, str] = {}
        # How many agents a node owns, how many it is replica of, and where a group's agents are.
        self.owned: Counter[str] = Counter()
        self.kept: Counter[str | None] = Counter()
        self.groups: dict[str | None, Counter[str]] = {}
        self.index = Index()
        self.broken: OSError | None = None
        self._length = 0
        for record in self._journal.load():
            self._make(record)
            self._length += _things(record)

    async def note(
        self,
        *,
        places: Iterable[Place] = (),
        members: Iterable[Member] = (),
        moves: Iterable[Move] = (),
        moved: Iterable[str] = (),
        gone: Iterable[str] = (),
        stays: Iterable[tuple[str, str]] = (),
        untold: Iterable[str] = (),
        told: Iterable[str] = (),
        epochs: Mapping[str, int] | None = None,
    ) -> None:
        """All `places`, `members` and `moves` at once. `moved`: these moves are over; `gone`:
        forget these agents; `stays`: agents, and the nodes on which they shall stay; `untold`:
        nodes that may bring agents, `told`: that have said which; `epochs`: in which those end that
        were forgotten.

        Raises Unreachable where the disk failed: the change may be on it or not, so from then on
        nothing is answered until a restart has read what is there.
        """
        change = {
            "places": [place.to_record() for place in places],
            "members": [member.to_record() for member in members],
            "moves": [move.to_record() for move in moves],
            "moved": list(moved),
            "gone": [[agent, self.places[agent].epoch] for agent in gone],
            "stays": [[agent, node] for agent, node in stays],
            "untold": list(untold),
            "told": list(told),
            "epochs": dict(epochs or {}),
        }
        self.check()
        try:
            await self._journal.append({key: value for key, value in change.items() if value})
        except OSError as error:
            self.broken = error
        self.check()
        self._make(change)
        self._length += _things(change)

    def check(self) -> None:
        """Raises Unreachable after the disk has failed."""
        if self.broken is not None:
            raise Unreachable(to="directory", method=f"its journal ({self.broken})")

    async def compact(self) -> None:
        """Write the journal anew if most of it is of the past. Where the disk has no room for two
        of them, the long one stands."""
        if self._length > WASTE * self._size() + 100:
            with suppress(OSError):
                await self.rewrite()

    async def rewrite(self) -> None:
        """Write the journal anew, as it is now: as `compact` does where that is worth while. What
        is noted meanwhile stands behind it. Raises OSError: then the old one stands, or the new."""
        self._length = self._size()
        await self._journal.replace(self._state())

    def _size(self) -> int:
        return len(self.places) + len(self.members) + len(self.moves) + len(self.gone)

    def alive(self, node: str | None) -> bool:
        """Whether the node's last incarnation is not over, as far as is known."""
        member = self.members.get(node or "")
        return member is not None and not member.fenced

    def takes(self, node: str) -> bool:
        """Whether an agent may be brought there."""
        return self.alive(node) and not self.members[node].draining

    def _state(self) -> Iterator[Record]:
        """As it is now, in records that are made one by one as they are written: a million at once
        would be a pause."""
        members, places = list(self.members.values()), list(self.places.values())
        moves, stays = list(self.moves.values()), list(map(list, self.stays.items()))
        return chain(
            _packed("epochs", list(self.gone.items()), dict),
            _packed("members", members, _records),
            _packed("places", places, _records),
            _packed("moves", moves, _records),
            [{"stays": stays}],
            [{"untold": sorted(self.untold)}],
        )

    def _make(self, change: Record) -> None:
        self.gone.update(change.get("epochs", {}))
        for agent, epoch in change.get("gone", ()):
            self.moves.pop(agent, None)
            self._put(agent, None)
            self.gone[agent] = epoch
        for place in _each(change, "places", Place):
            self._put(place.agent, place)
        for member in _each(change, "members", Member):
            self.members[member.node] = member
        for move in _each(change, "moves", Move):
            self.moves[move.agent] = move
        self.stays.update(change.get("stays", ()))
        self.untold.update(change.get("untold", ()))
        self.untold.difference_update(change.get("told", ()))
        for agent in change.get("moved", ()):
            self.moves.pop(agent, None)
            self._may_go_unless_at(agent, self.places[agent].node)

    def _put(self, agent: str, place: Place | None) -> None:
        if agent not in self.moves:
            self._may_go_unless_at(agent, None if place is None else place.node)
        before = self.places.pop(agent, None)
        self.index.put(before, place)
        if before is None and place is not None:
            self.names.add(agent)
        elif before is not None and place is None:
            self.names.remove(agent)
        for counted, by in ((before, -1), (place, 1)):
            if counted is not None:
                self.owned[counted.node] += by
                self.kept[counted.replica] += by
                self._count(counted, by)
        if place is not None:
            self.places[agent] = place

    def _count(self, place: Place, by: int) -> None:
        """An agent of its group more, or less, on its node."""
        nodes = self.groups.setdefault(place.group, Counter())
        nodes[place.node] += by
        if not nodes[place.node]:
            del nodes[place.node]
        if not nodes:
            del self.groups[place.group]

    def _may_go_unless_at(self, agent: str, node: str | None) -> None:
        """It lives there now. Who was to stay elsewhere was forced away, or never came there."""
        if self.stays.get(agent) != node:
            self.stays.pop(agent, None)


def _packed(
    name: str, things: Sequence[Any], packed: Callable[[Sequence[Any]], object]
) -> Iterator[Record]:
    """Records of some `things` each, `packed` under a `name`."""
    for first in range(0, len(things), TOGETHER):
        yield {name: packed(things[first : first + TOGETHER])}


def _records(things: Sequence[Plain]) -> list[Record]:
    return [thing.to_record() for thing in things]


def _things(change: Record) -> int:
    return sum(len(change.get(kind, ())) for kind in ("places", "members", "moves", "gone"))


def _each(change: Record, name: str, kind: Any) -> list[Any]:
    return [kind.from_record(record) for record in change.get(name, ())]


def next_epoch(place: Place, **changes: Any) -> Place:
    """The place, changed: in a new epoch."""
    return replace(place, epoch=place.epoch + 1, **changes)
