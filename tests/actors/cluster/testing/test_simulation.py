"""Clusters under seeds: whatever fails, the oracle finds nothing, and with a bug it finds it."""

import subprocess
import sys

import pytest
from losing import the_replica_gets_nothing
from samples import FULL, sample_of
from seeded import seeded

from kvactors.actors.cluster.testing.faults import FAULTS, STEPS
from kvactors.actors.cluster.testing.workload import run_seed

# The same in each run, for the mutants; then those of the day, of the 10,000 of the long form.
FIXED = [range(start, start + 100) for start in range(1, 601, 100)]
OF_THE_DAY = sample_of(range(601, 10_001), 100, "clusters")
# All of them take longer than one test may.
PARTS = [OF_THE_DAY[start : start + 200] for start in range(0, len(OF_THE_DAY), 200)]
# Seeds in which all that may happen does; where worlds change, others show it.
RICH = [3, 18, 32, 61, 65]


def broken(seeds: range | list[int], durable: str = "two") -> list[str]:
    """What did not hold, up to the first seed in which something did not."""
    for seed in seeds:
        if found := run_seed(seed, durable).broken:
            return [f"seed {seed}", *found]
    return []


@pytest.mark.slow
@pytest.mark.parametrize("seeds", FIXED, ids=lambda seeds: f"from {seeds[0]}")
def test_nothing_acknowledged_is_lost_taken_twice_or_owned_by_two(seeds: range) -> None:
    assert broken(seeds) == []


@pytest.mark.slow
@pytest.mark.parametrize("seeds", PARTS, ids=lambda seeds: f"from {seeds[0]}" if FULL else "few")
def test_nor_in_the_seeds_of_the_day(seeds: list[int]) -> None:
    assert broken(seeds) == []


@pytest.mark.slow
def test_on_one_node_turns_wait_for_it_and_are_not_lost_either() -> None:
    assert broken(range(1, 101), "one") == []


def test_a_seed_is_the_same_story_each_time() -> None:
    first, second = run_seed(7), run_seed(7)

    assert first.log == second.log
    assert first.answers > 0


def test_whatever_may_happen_does_in_these_worlds() -> None:
    missing = {"taken", "answered", "Undelivered in flight", "Undelivered", "Unanswered"}
    missing |= {"MailboxFull", "followed", "taken over", *STEPS, *FAULTS}
    for seed in [*RICH, *range(1, 81)]:
        if missing:
            outcome = run_seed(seed)
            missing -= {*outcome.letters, *outcome.reached, *outcome.struck}

    assert missing == set()


def test_with_replication_off_turns_are_lost_and_the_oracle_says_so() -> None:
    with seeded(the_replica_gets_nothing):
        found = broken(range(1, 20))

    assert any("is lost on" in what for what in found), found


def test_the_command_tells_of_its_seeds_however_many_processes_tell_them() -> None:
    command = [sys.executable, "-m", "kvactors.actors.cluster.testing", "--seeds", "1..6"]
    alone, beside = (
        subprocess.run([*command, "--jobs", jobs], capture_output=True, text=True, timeout=120)
        for jobs in ("1", "2")
    )

    assert (alone.returncode, alone.stderr) == (0, "")
    assert (beside.returncode, beside.stderr) == (0, "")
    first, others = (told.stdout.partition("\n") for told in (alone, beside))
    assert first[0].startswith("6 seeds, ")
    assert "0 broken" in first[0]
    # Seconds are their own.
    assert first[2] == others[2]
