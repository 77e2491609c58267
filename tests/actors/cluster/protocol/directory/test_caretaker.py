"""What the directory's rounds look at: those for whom something can be done, and no more."""

from dataclasses import replace

from caretaking import Round, place
from machine import SETTINGS, Machine

from kvactors.actors.cluster.protocol.directory.caretaker import AT_ONCE
from kvactors.actors.cluster.protocol.records import Member


def test_who_cannot_be_taken_over_keeps_nobody_from_it(machine: Machine) -> None:
    lost = [place(f"a{n}", "n1", "n2") for n in range(AT_ONCE + 1)]
    gone = [Member(name, 1, "d", fenced=True) for name in ("n1", "n2")]
    both = Round(machine, [*lost, place("last", "n1", "n3")], *gone, Member("n3", 1, "d"))

    both.goes(2)

    assert both.registry.places["last"].node == "n3"
    assert both.registry.places["a0"].node == "n1"


def test_a_round_looks_for_places_of_as_many_as_it_moves(machine: Machine) -> None:
    there = [place(f"a{n}", "n1", "n2") for n in range(100)]
    leaves = [Member("n1", 1, "d", draining=True), *(Member(n, 1, "d") for n in ("n2", "n3"))]
    drained = Round(machine, there, *leaves)

    drained.goes()

    assert len(drained.registry.moves) == drained.members.changed == SETTINGS.moves


def test_who_is_drained_finds_its_group_where_that_is_or_is_about_to_be(machine: Machine) -> None:
    there = [replace(place(f"a{n}", "n1", "n2"), group="aabb"[n]) for n in range(4)]
    # Each node holds as much; n3 has others of group b.
    n3 = [replace(place(f"c{n}", "n3", "n2"), group="b") for n in range(2)]
    n2 = [place(f"d{n}", "n2", "n3") for n in range(2)]
    leaves = [Member("n1", 1, "d", draining=True), *(Member(n, 1, "d") for n in ("n2", "n3"))]
    drained = Round(machine, [*there, *n3, *n2], *leaves)

    drained.goes()

    went = {move.agent: move.target for move in drained.registry.moves.values()}
    assert went == {"a0": "n2", "a1": "n2", "a2": "n3", "a3": "n3"}


def test_a_drained_node_that_is_lost_with_its_replicas_holds_up_no_other_moves(
    machine: Machine,
) -> None:
    lost = [place(f"a{n}", "n1", "n2") for n in range(2 * SETTINGS.moves)]
    gone = [Member("n1", 1, "d", fenced=True, draining=True), Member("n2", 1, "d", fenced=True)]
    leaves = Member("n3", 1, "d", draining=True)
    both = Round(machine, [*lost, place("b", "n3", "n4")], *gone, leaves, Member("n4", 1, "d"))

    both.goes()

    assert list(both.registry.moves) == ["b"]
