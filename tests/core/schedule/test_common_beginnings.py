"""Agents that were told the same up to some token hold that once, and nobody can tell."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from makers import LoadGrid, MakeEngine, prompt_of, prompts_of
from seeded import bug, seeded

from kvactors import Sampling
from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.engine.preemption import Preemption
from kvactors.core.schedule.events import Finished, KVNeeded
from kvactors.core.schedule.request import Request
from kvactors.core.testing.engines import make_request, run_engine

ANSWER = Sampling(max_tokens=5)
WORLD = prompt_of(700)


def turn(
    name: str, prompt: Sequence[int], *, known: Sequence[int] = (), of: str | None = ""
) -> Request:
    """A turn of an agent that was told a `prompt` behind what is `known`, `of` whose agents."""
    request = make_request(name, list(known), list(prompt), ANSWER)
    request.tenant = of
    return request


def after(common: Sequence[int], number: int, length: int = 30) -> list[int]:
    """A prompt that begins with what is `common`, and goes on in a way of its own."""
    return [*common, 100 + number, *prompt_of(length, seed=number)]


def say(engine: Engine, *requests: Request) -> dict[str, Finished]:
    """Their turns, all asked at once."""
    return run_engine(engine, [(0, request) for request in requests])


def answered_alone(make: MakeEngine, load: LoadGrid, request: Request) -> list[int]:
    alone = turn("alone", request.tokens[: request.prompt])
    return say(make(load()), alone)["alone"].request.generated


@pytest.mark.parametrize("together", [False, True])
def test_what_they_have_in_common_is_computed_once(
    load_grid: LoadGrid, make_engine: MakeEngine, *, together: bool
) -> None:
    engine = make_engine(load_grid())
    requests = [turn(f"{n}", after(WORLD, n)) for n in range(4)]

    for some in [requests] if together else [[request] for request in requests]:
        say(engine, *some)

    assert [request.kept for request in requests] == [0] + [len(WORLD)] * 3
    assert engine.stats()["shared_tokens"] == 3 * len(WORLD)
    assert {request.shared for request in requests} == {0}
    for request in requests:
        assert request.generated == answered_alone(make_engine, load_grid, request)


def test_who_begins_with_what_another_was_answered_has_that_too(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    first = turn("first", prompt_of(800))
    say(engine, first)

    told = turn("told", after(first.tokens[:-1], 1))
    say(engine, told)

    assert told.kept == len(first.tokens) - 1


def test_the_longest_beginning_is_taken(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    engine, longer = make_engine(load_grid()), [*WORLD, *prompt_of(300, seed=7)]
    say(engine, turn("longest", after(longer, 1)))
    for number in range(2, 5):
        say(engine, turn(f"{number}", after(WORLD, number)))

    last = turn("last", after(longer, 9))
    say(engine, last)

    assert last.kept == len(longer)


@pytest.mark.parametrize("lengths", [(len(WORLD), 520), (520, len(WORLD))])
def test_of_those_with_the_same_blocks_the_one_with_most_is_taken(
    load_grid: LoadGrid, make_engine: MakeEngine, lengths: tuple[int, int]
) -> None:
    engine = make_engine(load_grid())
    for number, had in enumerate(lengths):
        say(engine, turn(f"{number}", after(WORLD[:had], number)))

    last = turn("last", after(WORLD, 9))
    say(engine, last)

    assert last.kept == len(WORLD)


def test_who_has_some_of_it_takes_what_is_much_more(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    say(engine, turn("other", after(WORLD, 1)))
    for name, had in (("little", 20), ("much", 500)):
        say(engine, turn(name, [*WORLD[:had], 9]))

    ends = say(engine, turn("little", after(WORLD, 2)), turn("much", after(WORLD, 3)))

    assert ends["little"].request.kept == len(WORLD)
    assert ends["much"].request.kept == 500


@pytest.mark.parametrize(("one", "other"), [("a", "b"), (None, None), ("", None)])
@pytest.mark.parametrize("together", [False, True])
def test_agents_of_others_share_nothing(
    load_grid: LoadGrid,
    make_engine: MakeEngine,
    one: str | None,
    other: str | None,
    *,
    together: bool,
) -> None:
    engine = make_engine(load_grid())
    requests = [turn("one", after(WORLD, 1), of=one), turn("other", after(WORLD, 2), of=other)]

    for some in [requests] if together else [[request] for request in requests]:
        say(engine, *some)

    assert engine.stats()["shared_tokens"] == 0


def test_nobody_waits_long_for_little(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    engine = make_engine(load_grid())
    long, short = turn("long", after(WORLD[:260], 1, 4000)), turn("short", after(WORLD[:260], 2))
    long.shared, long.prompt_hash = 3000, "its own"

    engine.submit(long)
    engine.submit(short)
    engine.step()

    assert short.admitted_at
    run_engine(engine, [])


def test_where_there_is_no_room_to_keep_it_nobody_waits_for_ever(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    @bug(Preemption, "can_keep")
    def there_is_no_room(_true: object) -> object:
        return lambda *_: False

    engine = make_engine(load_grid())
    with seeded(there_is_no_room):
        ends = say(engine, *(turn(f"{n}", after(WORLD, n)) for n in range(3)))

    assert len(ends) == 3


def test_what_is_stored_of_ones_own_is_read_before_less_is_taken_of_others(
    load_grid: LoadGrid,
) -> None:
    engine = Engine(load_grid(), EngineConfig(4, 1 << 28, stored=True))
    own, stored = after(WORLD, 1, 600), list[Segment]()
    stored += say(engine, turn("own", own))["own"].exported
    engine.saved("own", sum(part.nbytes for part in stored))
    say(engine, turn("other", after(WORLD, 2)))
    engine.memory.hot.drop("own")

    engine.submit(turn("own", [5, 5], known=own))

    assert KVNeeded("own") in engine.step()
    engine.provide("own", stored)
    ends = run_engine(engine, [])
    assert ends["own"].request.cache_state == "warm"
    assert ends["own"].request.kept > len(WORLD)


def test_who_waits_for_what_is_restored_begins_with_it(load_grid: LoadGrid) -> None:
    engine = Engine(load_grid(), EngineConfig(4, 1 << 28, stored=True))
    own, stored = after(WORLD, 1), list[Segment]()
    stored += say(engine, turn("own", own))["own"].exported
    engine.saved("own", sum(part.nbytes for part in stored))
    engine.memory.hot.drop("own")
    mine, other = turn("own", [5, 5], known=own), turn("other", after(WORLD, 2))

    engine.submit(mine)
    engine.submit(other)
    assert KVNeeded("own") in engine.step()
    assert not other.admitted_at
    engine.provide("own", stored)
    run_engine(engine, [])

    assert other.kept == len(WORLD)


@pytest.mark.parametrize("kind", ["reproducible", "mamba2"])
def test_where_chunks_have_fixed_ends_system_prompts_alone_are_shared(
    load_grid: LoadGrid, load_family: LoadGrid, make_engine: MakeEngine, kind: str
) -> None:
    loaded = load_grid() if kind == "reproducible" else load_family(kind)
    policy = replace(loaded.policy, reproducible=kind == "reproducible")
    engine = make_engine(replace(loaded, policy=policy))
    for shared in (0, 300):
        one, other = turn("one", after(WORLD, 1)), turn("other", after(WORLD, 2))
        for request in (one, other):
            request.shared, request.prompt_hash = shared, "the same"
            engine.memory.hot.drop(request.agent_id)
            say(engine, request)

        assert (one.kept, other.kept) == (0, shared)


def test_prompts_of_all_lengths_are_answered_as_if_alone(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    lengths = (255, 256, 257, 511, 512, 513)
    for number, (length, rest) in enumerate(zip(lengths, prompts_of(lengths, 3), strict=True)):
        request = turn(f"{number}", [*WORLD[:length], *rest[: length // 9]])
        say(engine, request)
        assert request.generated == answered_alone(make_engine, load_grid, request)


@pytest.mark.parametrize("had", [0, 300])
def test_nobody_computes_what_one_that_has_some_of_it_just_prefills(
    load_grid: LoadGrid, make_engine: MakeEngine, had: int
) -> None:
    engine, requests = make_engine(load_grid()), [turn(f"{n}", after(WORLD, n)) for n in range(4)]
    if had:
        say(engine, turn("some", after(WORLD[:had], 9)))

    say(engine, *requests)

    assert [request.kept for request in requests] == [had] + [len(WORLD)] * 3


def test_the_more_urgent_does_not_wait(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    engine = make_engine(load_grid())
    low, high = turn("low", after(WORLD, 1)), turn("high", after(WORLD, 2))
    high.priority = 1

    engine.submit(low)
    engine.step()
    engine.submit(high)
    engine.step()

    assert high.admitted_at
    run_engine(engine, [])


def test_whose_beginning_was_awaited_is_alike_to_no_other_one(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine, other = make_engine(load_grid()), prompt_of(900, seed=8)
    requests = [turn("x", after(WORLD, 1)), turn("y", after(other, 1))]
    for request in requests:
        request.awaited = 700

    engine.submit(requests[0])
    engine.step()
    engine.submit(requests[1])
    engine.step()

    assert requests[1].admitted_at
    run_engine(engine, [])


def test_whose_own_beginning_others_waited_for_stays_hot(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    first = say(engine, turn("a", WORLD[:20]))["a"].request
    known = first.tokens
    longer = [*known, *prompt_of(900, seed=3)]
    second, other = turn("a", longer[len(known) :], known=known), turn("b", after(longer, 1))

    seen = set[bool]()

    def look(_step: int) -> None:
        cache = engine.memory.hot.get("a")
        seen.add(cache is not None and cache.borrowed)

    ends = run_engine(engine, [(0, second), (0, other)], look)

    assert ends["b"].request.kept >= len(longer) - 1
    assert seen == {False}
