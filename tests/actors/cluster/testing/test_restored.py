"""Clusters that begin over restored stores: what was restored is theirs, and who was forgotten does
not come back, whatever fails meanwhile."""

from typing import Any

import pytest
from samples import sample_of
from seeded import bug, seeded

from kvactors.actors.cluster.protocol.directory.adoption import Adoption
from kvactors.actors.cluster.protocol.node.copier import Copier, Peer
from kvactors.actors.cluster.testing.workload import run_seed

FIXED = [range(1, 101), range(101, 201)]
OF_THE_DAY = sample_of(range(201, 10_001), 100, "restored clusters")


def broken(seeds: range | list[int], durable: str = "two") -> list[str]:
    """What did not hold, up to the first seed in which something did not."""
    for seed in seeds:
        if found := run_seed(seed, durable, restored=True).broken:
            return [f"seed {seed}", *found]
    return []


@pytest.mark.slow
@pytest.mark.parametrize("seeds", FIXED, ids=lambda seeds: f"from {seeds[0]}")
def test_all_that_was_restored_is_there_and_everybody_answers(seeds: range) -> None:
    assert broken(seeds) == []


def test_so_it_is_in_seeds_that_once_found_something() -> None:
    # A node that was just joining when it was decided who has an agent; one drained before it told.
    assert broken([842, 970, 1041]) == []


@pytest.mark.slow
def test_so_it_is_in_the_seeds_of_the_day() -> None:
    assert broken(OF_THE_DAY) == []


@pytest.mark.slow
def test_so_it_is_on_one_node() -> None:
    assert broken(range(1, 41), "one") == []


@bug(Adoption, "refuse_unsure")
def nobody_waits_for_what_stores_have(true: Any) -> Any:
    return lambda self, agent: None


@bug(Copier, "catch_up")
def the_replica_gets_nothing(true: Any) -> Any:
    async def catch_up(self: Copier, peer: Peer) -> None:
        return None

    return catch_up


def test_where_a_spawn_does_not_wait_the_restored_turns_are_lost_and_the_oracle_says_so() -> None:
    with seeded(nobody_waits_for_what_stores_have):
        found = [what for seed in range(1, 25) for what in run_seed(seed, restored=True).broken]

    assert any("old-" in what and "is lost on" in what for what in found), found


def test_with_replication_off_restored_turns_are_lost_and_the_oracle_says_so() -> None:
    with seeded(the_replica_gets_nothing):
        found = broken(range(1, 10))

    assert any("old-" in what and "is lost on" in what for what in found), found
