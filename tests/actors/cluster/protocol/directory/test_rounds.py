"""What a round of the directory costs: it looks at those that may need something, a few at a time,
however many there are."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

from caretaking import Round, place
from machine import SETTINGS, Machine

from kvactors.actors.cluster.protocol.directory.index import Index
from kvactors.actors.cluster.protocol.directory.registry import TOGETHER, Registry
from kvactors.actors.cluster.protocol.records import Member, Place

NODES = 100
MANY = 100_000
# Looks at places between two turns of others on the loop.
PAUSE = 2_500


class Counted(dict[str, Place]):
    """Places, and how often one was looked at."""

    looks = 0

    def __getitem__(self, agent: str) -> Place:
        self.looks += 1
        return super().__getitem__(agent)

    def get(self, agent: str, default: Any = None) -> Any:
        self.looks += 1
        return super().get(agent, default)

    def values(self) -> Iterator[Place]:  # type: ignore[override]
        for found in super().values():
            self.looks += 1
            yield found


def spread(machine: Machine, *, fenced: int = 0) -> tuple[Round, Counted]:
    """Places of 100,000 on 100 nodes with replicas next to them; the first nodes are over."""
    places = [place(f"a{n}", f"n{n % NODES}", f"n{(n + 1) % NODES}") for n in range(MANY)]
    nodes = [Member(f"n{n}", 1, "d", fenced=n < fenced) for n in range(NODES)]
    rounds = Round(machine, places, *nodes)
    counted = rounds.registry.places = Counted(rounds.registry.places)
    return rounds, counted


def longest_pause(machine: Machine, rounds: Round, counted: Counted) -> int:
    """Looks of a round that no other task came between."""
    pauses = [0]

    async def beside() -> None:
        looks = counted.looks
        while True:
            # Time passes in this world only while all wait for it.
            await asyncio.sleep(0 if any(pauses[-9:]) or len(pauses) < 9 else 1e-6)
            pauses.append(counted.looks - looks)
            looks = counted.looks

    others = machine.process.start(beside())
    rounds.goes()
    others.cancel()
    return max(pauses)


def test_a_round_looks_at_nobody_where_nothing_is_to_be_done(machine: Machine) -> None:
    rounds, counted = spread(machine)
    rounds.goes()
    counted.looks = 0

    rounds.caretaker.look()
    rounds.goes()

    # Some of the fullest nodes, which are even.
    looks = counted.looks
    assert looks < 500


def test_a_lost_node_costs_looks_at_its_own_agents_with_pauses_for_others(machine: Machine) -> None:
    rounds, counted = spread(machine, fenced=10)
    counted.looks = 0

    pause = longest_pause(machine, rounds, counted)

    # Those that the ten had, and those that they kept.
    looks = counted.looks
    assert looks < 2.5 * 10 * MANY / NODES
    assert 0 < pause <= PAUSE


def test_a_cluster_of_one_node_looks_with_pauses_for_those_that_nobody_can_help(
    machine: Machine,
) -> None:
    alone = Round(machine, [place(f"a{n}", "n0", None) for n in range(MANY)], Member("n0", 1, "d"))
    counted = alone.registry.places = Counted(alone.registry.places)

    pause = longest_pause(machine, alone, counted)

    assert 0 < pause <= PAUSE


GROUPS = ("one", "two", None)


def test_an_index_is_that_of_the_places_whatever_they_live_through(machine: Machine) -> None:
    rng, registry = machine.rng, Registry(machine.journal)

    for _ in range(500):
        agent, node, replica = f"a{rng.randrange(9)}", *rng.choices(["n1", "n2", None], k=2)
        if node is not None:
            claimed, epoch = rng.randrange(2), rng.randrange(1, 3)
            new = Place(agent, node, claimed, epoch, replica, rng.choice(GROUPS), 1)
            machine.does(registry.note(places=[new]))
        elif agent in registry.places:
            machine.does(registry.note(gone=[agent]))

        anew = Index()
        for there in registry.places.values():
            anew.put(None, there)
        assert full(registry.index) == full(anew)
        grouped = Counter((place.group, place.node) for place in registry.places.values())
        assert {
            (group, node): count
            for group, nodes in registry.groups.items()
            for node, count in (nodes or {None: 0}).items()
        } == grouped


def test_epochs_of_agents_that_are_gone_are_written_in_parts(machine: Machine) -> None:
    registry = Registry(machine.journal)
    epochs = {f"a{number}": number for number in range(2 * TOGETHER + 1)}
    machine.does(registry.note(epochs=epochs))

    machine.does(registry.rewrite())

    assert Registry(machine.journal).gone == epochs
    assert max(len(entry.get("epochs", ())) for entry in machine.disk.files["journal"]) == TOGETHER


def full(index: Index) -> list[object]:
    """What stands in it."""
    owned, kept = ({n: set(a) for n, a in by.items() if a} for by in (index.owned, index.kept))
    return [owned, kept, set(index.single)]


def test_a_directory_that_stood_still_looks_again_before_it_fences(machine: Machine) -> None:
    machine.joins("n1")
    rounds = machine.process.start(machine.directory.run())
    machine.does(machine.process.wait(SETTINGS.lease / 2))

    machine.process.pause()
    machine.loop.run_until_complete(asyncio.sleep(2 * SETTINGS.lease))
    machine.process.resume(machine.rng)
    machine.does(machine.process.wait(SETTINGS.lease / 12))

    # What it said meanwhile is read only now.
    machine.ask("renew", node="n1", incarnation=1, load={"bytes": 0, "waiting": 0})
    rounds.cancel()
