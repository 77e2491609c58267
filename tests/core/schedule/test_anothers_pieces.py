"""Agents that hold the same beginning go on with what another of them has behind it."""

from collections.abc import Sequence

import pytest
from makers import LoadGrid, MakeEngine, prompt_of

from kvactors import Sampling
from kvactors.core.arena.wire import same_bytes
from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine
from kvactors.core.schedule.events import Finished
from kvactors.core.schedule.request import Request
from kvactors.core.testing.engines import make_request, run_engine

ANSWER = Sampling(max_tokens=5)
TRUNK, TEXT = prompt_of(700), prompt_of(400, seed=1)


class Disk:
    """What a store has of the agents of an `engine`, which it answers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.stored = dict[str, list[Segment]]()

    def say(self, *requests: Request) -> dict[str, Finished]:
        """Their turns, all asked at once."""
        arrivals = [(0, request) for request in requests]
        ends = run_engine(self.engine, arrivals, stored=self.stored)
        for end in ends.values():
            self._write(end)
        return ends

    def _write(self, end: Finished) -> None:
        name, new = end.request.agent_id, end.exported
        if new:
            known = [part for part in self.stored.get(name, []) if part.start < new[0].start]
            assert (known[-1].end if known else 0) == new[0].start
            self.stored[name] = [*known, *new]
            self.engine.saved(name, sum(part.nbytes for part in new))

    def fork(self, parent: str, *children: str) -> None:
        """Agents that have all that their parent has, in memory and on the disk."""
        for child in children:
            self.stored[child] = list(self.stored[parent])
            self.engine.memory.fork(parent, child)

    def restart(self) -> None:
        """Nothing is in memory any more."""
        for name in self.stored:
            self.engine.memory.hot.drop(name)

    def check(self) -> None:
        """What is stored of those in memory is, byte by byte, what they go on with."""
        for name, parts in self.stored.items():
            cache = self.engine.memory.hot.get(name)
            assert cache is not None
            pieces = cache.slices((part.start, part.end) for part in parts)
            for piece, part in zip(pieces, parts, strict=True):
                assert same_bytes(piece, part.tensors)


@pytest.fixture
def disk(load_grid: LoadGrid, make_engine: MakeEngine) -> Disk:
    """A store, and its engine, over a model whose sums have no rounding."""
    return Disk(make_engine(load_grid(), stored=True))


def turn(name: str, known: Sequence[int], prompt: Sequence[int]) -> Request:
    request = make_request(name, list(known), list(prompt), ANSWER)
    request.tenant = ""
    return request


def alone(make: MakeEngine, load: LoadGrid, request: Request) -> list[int]:
    """What somebody answers who is told all of that at once."""
    told = turn("alone", [], request.tokens[: request.prompt])
    return Disk(make(load())).say(told)["alone"].request.generated


def forked(disk: Disk) -> list[int]:
    """The tokens of three agents with one beginning."""
    known = disk.say(turn("parent", [], TRUNK))["parent"].request.tokens
    disk.fork("parent", "a", "b", "c")
    return known


def after(number: int) -> list[int]:
    return [*TEXT, 100 + number, *prompt_of(30, seed=number + 2)]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_forks_that_are_told_the_same_compute_it_once(
    disk: Disk, load_grid: LoadGrid, make_engine: MakeEngine, *, together: bool, restarted: bool
) -> None:
    known = forked(disk)
    if restarted:
        disk.restart()
    requests = [turn(name, known, after(n)) for n, name in enumerate("abc")]

    ends = dict[str, Finished]()
    for some in [requests] if together else [[request] for request in requests]:
        ends |= disk.say(*some)

    cached = len(known) - 1
    assert [request.kept for request in requests] == [cached] + [len(known) + len(TEXT)] * 2
    assert {request.cache_state for request in requests} == {"warm" if restarted else "hot"}
    # What they have had is written once.
    floor = cached // 256 * 256
    assert [end.exported[0].start for end in ends.values()] == [floor] * 3
    disk.say(turn("parent", known, [3]))
    disk.check()
    assert requests[1].generated == alone(make_engine, load_grid, requests[1])


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("length", [60, 100, 150, 300])
def test_who_is_told_little_at_once_waits_for_it(disk: Disk, length: int, restarted: bool) -> None:
    known = forked(disk)
    if restarted:
        disk.restart()
    told = [[*TEXT[:length], 100 + n, *prompt_of(20, seed=n)] for n in range(3)]
    requests = [turn(name, known, text) for name, text in zip("abc", told, strict=True)]

    disk.say(*requests)

    assert [r.kept for r in requests] == [len(known) - 1, *[len(known) + length] * 2]


def test_what_was_taken_of_another_is_ones_own_after_a_restart(
    disk: Disk, load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    known = forked(disk)
    for number, name in enumerate("ab"):
        disk.say(turn(name, known, after(number)))
    cache = disk.engine.memory.hot.get("b")
    assert cache is not None
    tokens = cache.tokens
    disk.restart()

    again = turn("b", [*tokens, 7], [5, 5])
    disk.say(again)

    assert (again.cache_state, again.kept) == ("warm", len(tokens))
    assert again.generated == alone(make_engine, load_grid, again)


def test_who_is_asked_again_from_some_place_on_has_what_another_computed_up_to_it(
    disk: Disk,
) -> None:
    first = disk.say(turn("first", [], TRUNK))["first"].request
    place = 600
    for name in ("a", "b"):
        # A fork has whole segments of its parent.
        disk.stored[name] = [part for part in disk.stored["first"] if part.end <= place]
    had = disk.stored["a"][-1].end
    disk.restart()

    again = [turn(name, first.tokens[:place], [9]) for name in ("a", "b")]
    for request in again:
        disk.say(request)

    assert [request.kept for request in again] == [had, place]


@pytest.mark.parametrize(("more", "taken"), [(31, False), (32, True)])
def test_a_few_tokens_are_not_worth_it(disk: Disk, more: int, *, taken: bool) -> None:
    known = disk.say(turn("parent", [], TRUNK))["parent"].request.tokens[:512]
    disk.fork("parent", "a", "b")
    disk.say(turn("a", known, TEXT))

    other = turn("b", known, [*TEXT[:more], 111, 112])
    disk.say(other)

    assert other.kept == 512 + more * taken


@pytest.mark.parametrize(("more", "taken"), [(200, False), (350, True)])
def test_what_ones_own_has_of_its_own_is_given_up_only_for_as_much_more(
    disk: Disk, more: int, *, taken: bool
) -> None:
    own, other = turn("own", [], TRUNK[:300]), turn("other", [], TRUNK)
    own.tenant = None
    disk.say(own)
    disk.say(other)

    again = turn("own", TRUNK[:300], TRUNK[300 : 300 + more])
    end = disk.say(again)["own"]

    assert again.kept == 300 + (more - 1) * taken
    assert again.cache_state == "hot"
    assert end.exported[0].start == (0 if taken else 256)
    disk.check()


def test_what_is_stored_of_what_is_given_up_is_written_anew(disk: Disk) -> None:
    known, more = forked(disk), prompt_of(600, seed=8)
    told = [*TEXT[:300], *more]
    for name, length in (("a", 300), ("b", 900)):
        request = turn(name, known, told[:length])
        # What they have of it is not held once.
        request.tenant = None if name == "a" else ""
        disk.say(request)

    again = turn("a", [*known, *TEXT[:300]], more)
    end = disk.say(again)["a"]

    assert again.kept == len(again.tokens[: again.prompt]) - 1
    assert end.exported[0].start == 512
    disk.say(turn("parent", known, [3]), turn("c", known, [4]))
    disk.check()
