"""What is kept of responses is bounded, by age, count and bytes."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from databases import database

from kvactors.actors.frontends.server.wire.responses.store import ResponseStore

T = TypeVar("T")
DAY = 86400


async def run(work: Callable[[], T]) -> T:
    return work()


def do(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def store_of(path: Path | str = ":memory:", **bounds: Any) -> ResponseStore:
    return ResponseStore(database(path), run, **bounds)


def kept(store: ResponseStore, count: int) -> list[int]:
    return [n for n in range(count) if do(store.find("", f"r{n}")) is not None]


def test_what_is_older_than_it_may_be_is_no_more() -> None:
    clock = Clock()
    store = store_of(days=30, clock=clock)
    do(store.keep("", "r0", {}, [{"id": "i"}]))
    clock.now = 30 * DAY
    assert kept(store, 1) == [0]

    clock.now += 1

    assert kept(store, 1) == []
    do(store.keep("", "r1", {}))
    assert do(store.items("r0")) == []


def test_what_is_added_to_stays_longer() -> None:
    clock = Clock()
    store = store_of(days=30, clock=clock)
    do(store.keep("", "r0", {}))
    clock.now = 20 * DAY
    do(store.add("r0", [{"id": "i"}]))

    clock.now = 40 * DAY

    assert kept(store, 1) == [0]


def test_of_too_many_the_oldest_leave() -> None:
    clock = Clock()
    store = store_of(most=2, clock=clock)

    for n in range(4):
        clock.now = n
        do(store.keep("", f"r{n}", {}))

    assert kept(store, 4) == [2, 3]


def test_of_too_much_the_oldest_leave() -> None:
    clock = Clock()
    store = store_of(most_bytes=1000, clock=clock)

    for n in range(4):
        clock.now = n
        do(store.keep("", f"r{n}", {}, [{"id": "i", "text": "é" * 200}]))

    assert kept(store, 4) == [2, 3]


def test_items_stand_in_the_order_in_which_they_came_and_once(tmp_path: Path) -> None:
    store = store_of(tmp_path / "clients.db")
    do(store.keep("", "r0", {"n": 1}, [{"id": "b"}, {"id": "a"}]))
    do(store.add("r0", [{"id": "c"}, {"id": "a"}]))
    do(store.add("nobody", [{"id": "c"}]))

    again = store_of(tmp_path / "clients.db")

    assert do(again.find("", "r0")) == {"n": 1}
    assert [item["id"] for item in do(again.items("r0"))] == ["b", "a", "c"]
    assert do(again.items("nobody")) == []


def test_what_is_kept_anew_keeps_its_items() -> None:
    store = store_of()
    do(store.keep("", "r0", {"n": 1}, [{"id": "a"}]))

    do(store.keep("", "r0", {"n": 2}))

    assert do(store.find("", "r0")) == {"n": 2}
    assert do(store.items("r0")) == [{"id": "a"}]


def test_what_is_removed_is_gone_with_its_items() -> None:
    store = store_of()
    do(store.keep("mine", "r0", {}, [{"id": "a"}]))

    assert not do(store.remove("other", "r0"))
    assert do(store.remove("mine", "r0"))
    assert not do(store.remove("mine", "r0"))
    assert do(store.items("r0")) == []
