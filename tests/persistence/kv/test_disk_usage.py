"""Whom to evict, in the order of use, and how many are looked at for that."""

from collections.abc import Iterable
from dataclasses import replace
from random import Random

import pytest

from kvactors.persistence.kv.disk_usage import DiskUsage, Key, Usage

F = "f" * 32
LAST = {"a1", "a2", "a3"}


class Looked(set[Key]):
    """Counts who is looked for."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        super().__init__(keys)
        self.count = 0

    def __contains__(self, key: object) -> bool:
        self.count += 1
        return super().__contains__(key)


@pytest.mark.parametrize("seed", range(20))
def test_who_was_used_longest_ago_leaves_first_and_who_is_last_after_all_others(seed: int) -> None:
    chance, disk = Random(seed), DiskUsage()
    for _ in range(200):
        key = Key(f"a{chance.randrange(30)}", F)
        act = chance.choice(["note", "note", "touch", "reserve", "gone"])
        known = disk.get(key)
        if act == "note":
            disk.note(key, Usage(10, (), float(chance.randrange(50)), 1))
        elif act == "gone":
            disk.note(key, None)
        elif act == "touch":
            disk.touch(key)
        elif known is not None:
            disk.reserve(key, 1)
        if chance.random() < 0.1 and known is not None:
            disk.note(key, replace(known, last_used=0.5))
        named = {key: disk.get(key) for key in (Key(f"a{n}", F) for n in range(30))}
        known_now = {key: usage for key, usage in named.items() if usage is not None}
        keep = set(chance.sample(list(known_now), len(known_now) // 4))
        free = {key: usage for key, usage in known_now.items() if key not in keep}

        needed = sum(usage.own for usage in free.values())
        found = disk.victims(needed, disk.size, keep, lambda: LAST)

        used = [(key.agent in LAST, free[key].last_used) for key in found]
        assert used == sorted(used)
        assert sorted(found) == sorted(free)


def test_who_is_not_evicted_is_not_looked_at() -> None:
    disk = DiskUsage()
    for number in range(1000):
        disk.note(Key(f"a{number}", F), Usage(10, (), 1000.0 - number, 1))
    disk.victims(10, disk.size, Looked(), set)
    looked = Looked([Key("a999", F)])
    disk.touch(Key("a998", F))
    disk.reserve(Key("new", F), 10)

    assert disk.victims(10, disk.size, looked, set) == [Key("a997", F)]
    assert looked.count < 5
