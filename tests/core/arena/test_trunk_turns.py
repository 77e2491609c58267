"""Turns of agents that begin alike: their rows read one beginning, and nobody can tell."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from forks import ANSWER, LONG, held_bytes, raise_parent, run_children, trunks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from makers import LoadGrid, MakeEngine, prompt_of

from kvactors.core.cache.segment import Segment
from kvactors.core.engine.engine import Engine
from kvactors.core.engine.hot_cache import HotCaches
from kvactors.core.errors import MemoryExceeded
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.events import Aborted, Finished, KVNeeded
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine


@pytest.fixture(scope="module")
def grid(load_grid: LoadGrid) -> LoadedModel:
    """A grid model of which short beginnings are worth sharing."""
    loaded = load_grid()
    return replace(loaded, policy=replace(loaded.policy, launch_tokens=64))


# -- the same ------------------------------------------------------------------------------


def test_forks_say_what_they_say_with_copies(grid: LoadedModel, make_engine: MakeEngine) -> None:
    said, seen, stored = [], set[int](), []
    for share in (True, False):
        engine = make_engine(grid, share=share)
        known = raise_parent(engine)

        def look(_: int, engine: Engine = engine) -> None:
            seen.update(trunks(engine))

        seen.clear()
        said.append(run_children(engine, known, look))
        stored.append(held_bytes(engine))
        assert (max(seen) > 0) == share
        assert engine.memory.rows.nbytes == 0

    assert said[0] == said[1]
    assert stored[0] == stored[1]
    # The tail of a piece that is no full block is each one's own in its second turn.
    assert len(known) - 1 == 605


@dataclass
class Life:
    """What an agent was told and answered, and what the store has of it."""

    tokens: list[int] = field(default_factory=list)
    stored: dict[int, Segment] = field(default_factory=dict)
    turn: int = 0


ACTION = st.tuples(
    st.integers(0, 4),
    st.integers(1, 90),
    st.integers(1, 20),
    st.sampled_from(["ask", "ask", "ask", "fork", "fork", "cancel", "forget", "evict"]),
)


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(ACTION, min_size=1, max_size=5), min_size=1, max_size=4),
    st.sampled_from([1 << 30, 2_200_000]),
)
def test_any_lives_of_forks_are_those_that_each_has_alone(
    grid: LoadedModel, make_engine: MakeEngine, rounds: list[list[Any]], budget: int
) -> None:
    engine = make_engine(grid, max_batch=4, budget=budget, stored=True)
    lives: dict[str, Life] = {"0": Life()}
    first = make_request("0", [], prompt_of(200), ANSWER)
    live(engine, lives, [(0, first)], {})

    for number, actions in enumerate(rounds):
        arrivals, cancels, expected = [], {}, {}
        for at, (who, length, answers, kind) in enumerate(actions):
            name = f"{who % len(lives)}"
            if kind == "fork" and lives[name].tokens:
                child = f"{len(lives)}"
                engine.memory.fork(name, child)
                lives[child] = replace(lives[name], stored=dict(lives[name].stored))
                name = child
            if kind == "forget":
                engine.forget(name)
            if kind == "evict":
                engine.memory.evict_until(lambda: False, ["0"])
            if name in expected:
                continue
            life, sampling = lives[name], Sampling(max_tokens=answers, temperature=0.7, seed=5)
            new = prompt_of(length, 10 * number + at)
            request = make_request(name, life.tokens, new, sampling, turn=life.turn, serial=at)
            expected[name] = list(request.tokens), sampling, life.turn
            arrivals.append((2 * at, request))
            if kind == "cancel":
                cancels[2 * at + 3] = name, at
        ended = live(engine, lives, arrivals, cancels)
        for name, (tokens, sampling, turn) in expected.items():
            if name not in ended:
                continue
            asked = make_request(name, [], tokens, sampling, turn=turn)
            alone = run_engine(make_engine(grid, share=False), [(0, asked)])[name]
            said = ended[name].request.generated
            assert said == alone.request.generated[: len(said)]
            whole = ended[name].reason != "cancelled"
            assert len(said) == len(alone.request.generated) or not whole


def live(
    engine: Engine,
    lives: dict[str, Life],
    arrivals: list[Any],
    cancels: dict[int, tuple[str, int]],
) -> dict[str, Finished]:
    """Run the turns that fit; what each agent knows from then on, and the store."""
    waiting, ended, step = list(arrivals), dict[str, Finished](), 0
    unwritten: list[tuple[str, int]] = []
    while waiting or engine.busy or unwritten:
        while waiting and waiting[0][0] <= step:
            _, request = waiting.pop(0)
            try:
                engine.submit(request)
            except MemoryExceeded:
                continue
        if step in cancels:
            engine.cancel(*cancels[step])
        for event in engine.step():
            if isinstance(event, KVNeeded):
                kept = lives[event.agent_id].stored
                engine.provide(event.agent_id, [kept[start] for start in sorted(kept)])
            elif isinstance(event, Aborted):
                raise event.error
            elif isinstance(event, Finished):
                name = event.request.agent_id
                ended[name] = event
                life = lives[name]
                life.tokens, life.turn = event.request.tokens, life.turn + 1
                for part in event.exported:
                    life.stored = {s: p for s, p in life.stored.items() if s < part.start}
                    life.stored[part.start] = part
                    unwritten.append((name, part.nbytes))
        if unwritten and step % 3 == 0:
            engine.saved(*unwritten.pop(0))
        engine.check()
        step += 1
    return ended


def test_who_gives_way_or_leaves_lets_the_others_read_on(
    grid: LoadedModel, make_engine: MakeEngine
) -> None:
    said = []
    for leave in (False, True):
        engine = make_engine(grid)
        known = raise_parent(engine)
        for index in range(3):
            engine.memory.fork("parent", f"{index}")

        def interfere(step: int, engine: Engine = engine, leave: bool = leave) -> None:
            if leave and step == 8:
                engine.forget("parent")
                engine.cancel("1", 1)
            if leave and step == 9:
                engine.memory.evict_until(lambda: False, [])

        arrivals = [
            (0, make_request(f"{i}", known, prompt_of(20, i), LONG, serial=i)) for i in range(3)
        ]
        ends = run_engine(engine, arrivals, interfere)
        said.append([ends[name].request.generated for name in "02"])

    assert said[0] == said[1]


# -- who shares ----------------------------------------------------------------------------


def test_where_agents_are_isolated_no_row_reads_what_another_has(
    grid: LoadedModel, make_engine: MakeEngine
) -> None:
    engine = make_engine(grid, share=False)
    seen: set[int] = set()

    def look(_: int) -> None:
        seen.update(trunks(engine))
        assert set(engine.memory.hot.held.holders.values()) <= {1}

    run_children(engine, raise_parent(engine), look)

    assert seen == {0}


@pytest.mark.parametrize("share", [True, False])
def test_agents_restored_from_the_same_bytes_hold_them_once_if_they_may(
    grid: LoadedModel, make_engine: MakeEngine, share: bool
) -> None:
    first = make_engine(grid, stored=True)
    end = run_engine(first, [(0, make_request("parent", [], prompt_of(700), ANSWER))])["parent"]
    known = end.request.tokens
    one = sum(part.nbytes for part in end.exported)

    engine = make_engine(grid, stored=True, share=share)
    for name in "abc":
        engine.submit(make_request(name, known, prompt_of(9, ord(name)), LONG))
    engine.step()
    for name in "abc":
        engine.provide(name, end.exported)
    held, blocks = engine.memory.hot.held.nbytes, engine.memory.hot.blocks.used_blocks
    seen: set[int] = set()
    ends = run_engine(engine, [], lambda _: seen.update(trunks(engine)))

    assert held == one * (1 if share else 3)
    # Two of three are full, and what follows is each one's own.
    assert blocks == (2 + 3 if share else 3 * 3)
    assert (705 in seen) == share
    for name in "abc":
        asked = make_request("alone", known, prompt_of(9, ord(name)), LONG)
        alone = run_engine(make_engine(grid, share=False), [(0, asked)])["alone"]
        assert ends[name].request.generated == alone.request.generated


def test_kv_of_the_same_tokens_but_other_bytes_is_not_shared(
    grid: LoadedModel, make_engine: MakeEngine
) -> None:
    first = make_engine(grid, stored=True)
    end = run_engine(first, [(0, make_request("parent", [], prompt_of(300), ANSWER))])["parent"]
    other = [
        replace(part, tensors=tuple((n, d, s, bytes(len(data))) for n, d, s, data in part.tensors))
        for part in end.exported
    ]
    engine = make_engine(grid, stored=True)
    for name in "ab":
        engine.submit(make_request(name, end.request.tokens, [5], LONG))
    engine.step()

    engine.provide("a", end.exported)
    engine.provide("b", other)

    hot: HotCaches = engine.memory.hot
    a, b = (hot.touch(name).pieces for name in "ab")
    assert not set(a) & set(b)
    assert len(a) == len(b) == len(end.exported)
