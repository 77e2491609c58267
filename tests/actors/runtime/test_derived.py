"""Futures that are made of others, with pykka's methods: each settles as soon as those have."""

import asyncio
from collections.abc import Callable
from operator import add
from typing import Any

import pykka
import pytest

from kvactors.actors.runtime.futures import ReplyFuture, WaitTimeout
from kvactors.actors.runtime.waits import Answer, Waits

WAIT = 30
Derive = Callable[[Any], Any]
DERIVED: dict[str, tuple[Derive, Any]] = {
    "map": (lambda future: future.map(sum), 6),
    "filter": (lambda future: future.filter(lambda n: n > 1), [2, 3]),
    "reduce": (lambda future: future.reduce(add), 6),
    "reduce from": (lambda future: future.reduce(add, 10), 16),
    "join": (lambda future: future.join(future), [[1, 2, 3], [1, 2, 3]]),
    "twice": (lambda future: future.map(sorted).join(future.map(len)), [[1, 2, 3], 3]),
}
each = pytest.mark.parametrize(("derive", "value"), DERIVED.values(), ids=DERIVED)


@each
def test_it_is_settled_with_what_it_is_made_of(derive: Derive, value: Any) -> None:
    answer = Answer(Waits(lambda: 0.0), "bob", None)
    told = list[Any]()
    derived = derive(answer)
    derived.on_done(lambda future: told.append(future.get()))
    with pytest.raises(WaitTimeout):
        derived.get(timeout=0)

    answer.resolve([1, 2, 3])

    assert told == [value] == [derived.get(timeout=0)]
    assert derive(answer).done


@each
def test_it_fails_with_what_it_is_made_of(derive: Derive, value: Any) -> None:
    source = ReplyFuture[Any]()
    derived = derive(source)

    source.reject(KeyError("gone"))

    with pytest.raises(KeyError, match="gone"):
        derived.get(timeout=0)


def test_what_the_function_raises_is_its_error() -> None:
    source = ReplyFuture[int]()
    derived = source.map(lambda n: 1 // n)

    source.resolve(0)

    assert isinstance(derived.error, ZeroDivisionError)


def test_one_of_several_that_fails_is_not_waited_for_by_the_others() -> None:
    fails = ReplyFuture[int]()
    joined = ReplyFuture[int]().join(fails, ReplyFuture[int]())

    fails.reject(KeyError("gone"))

    assert isinstance(joined.error, KeyError)
    with pytest.raises(KeyError, match="gone"):
        joined.get(timeout=0)


def test_those_of_strangers_are_waited_for_by_whoever_wants_it() -> None:
    answer, foreign = Answer(Waits(lambda: 0.0), "bob", None), pykka.ThreadingFuture[int]()
    joined = answer.join(foreign)
    total = joined.map(sum)

    foreign.set(2)
    answer.resolve(1)

    assert joined.get(timeout=WAIT) == [1, 2]
    assert total.get(timeout=WAIT) == 3


def test_the_loop_goes_on_while_one_of_its_tasks_awaits_it() -> None:
    async def main() -> int:
        source = ReplyFuture[int]()
        asyncio.get_running_loop().call_soon(source.resolve, 1)
        return await source.map(lambda n: n + 1)

    assert asyncio.run(main()) == 2
