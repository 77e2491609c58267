"""Forks whose parent goes on, who give way and who say the same again: rows read one beginning, to
the bit as if each had a copy, and nobody writes it."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from forks import LONG, held_bytes, raise_parent, run_children, trunks
from makers import LoadGrid, MakeEngine, Ticks, prompt_of

from kvactors.core.engine.engine import Engine
from kvactors.core.model.load import LoadedModel
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine

# Bytes in which the forks do not all fit at once: in the middle of those, from 1,970,000 to
# 2,600,000, since what a forward takes is measured.
SHORT_OF_MEMORY = 2_300_000


@pytest.fixture(scope="module")
def grid(load_grid: LoadGrid) -> LoadedModel:
    """A grid model of which short beginnings are worth sharing."""
    loaded = load_grid()
    return replace(loaded, policy=replace(loaded.policy, launch_tokens=64))


class Company:
    """What rows of an engine read where it is, and who of those who did gave way and came back."""

    def __init__(self, engine: Engine) -> None:
        self.read: set[int] = set()
        self.came_back: set[str] = set()
        self._engine = engine
        self._readers: set[str] = set()
        self._away: set[str] = set()

    def look(self, _: int) -> None:
        running = self._engine.memory.running
        self.read.update(trunks(self._engine))
        active = {request.agent_id for request in running.active}
        self.came_back.update(self._away & active)
        self._away.update(self._readers - active)
        self._readers.update(r.agent_id for r in running.answering if running.trunk(r).end)


def test_forks_that_give_way_say_and_keep_what_they_do_with_copies(
    grid: LoadedModel, make_engine: MakeEngine
) -> None:
    calm = make_engine(grid, share=False)
    expected, kept = run_children(calm, raise_parent(calm)), held_bytes(calm)
    engine = make_engine(grid, budget=SHORT_OF_MEMORY, clock=Ticks())
    company = Company(engine)

    said = run_children(engine, raise_parent(engine), company.look)

    held = held_bytes(engine)
    assert engine.stats()["preemptions"] > 0
    assert company.came_back, "nobody who read a beginning gave way"
    assert max(company.read) > 0
    assert said == expected
    assert len(held) > 3
    assert held == {name: kept[name] for name in held}


Step = Callable[[Engine, Sequence[int], int], None]


def fork_while_it_prefills(engine: Engine, known: Sequence[int], step: int) -> None:
    if step == 1:
        (parent,) = engine.memory.running.prefills
        assert 0 < parent.remaining < 800
        fork(engine, known, 3)


def fork_while_it_decodes(engine: Engine, known: Sequence[int], step: int) -> None:
    if step == 12:
        (parent,) = (r for r in engine.memory.running.answering if r.agent_id == "parent")
        assert parent.decoded > 3
        fork(engine, known, 3)


def fork_before_and_in_between(engine: Engine, known: Sequence[int], step: int) -> None:
    if step in (0, 7, 14):
        fork(engine, known, step)


def fork(engine: Engine, known: Sequence[int], number: int) -> None:
    """One more child of the parent, which asks at once."""
    name = f"child {number}"
    engine.memory.fork("parent", name)
    engine.submit(make_request(name, known, prompt_of(20 + number, number), LONG))


@pytest.mark.parametrize(
    "each",
    [fork_while_it_prefills, fork_while_it_decodes, fork_before_and_in_between],
    ids=lambda each: each.__name__,
)
def test_forks_of_a_parent_that_is_answering_say_and_keep_what_they_do_with_copies(
    grid: LoadedModel, make_engine: MakeEngine, each: Step
) -> None:
    said, held, seen = [], [], set[int]()
    for share in (True, False):
        engine = make_engine(grid, share=share, clock=Ticks())
        known = raise_parent(engine)
        seen.clear()

        def look(step: int, engine: Engine = engine, known: Sequence[int] = known) -> None:
            each(engine, known, step)
            seen.update(trunks(engine))

        answer = Sampling(max_tokens=40)
        parent = make_request("parent", known, prompt_of(800, 9), answer, turn=1)
        ends = run_engine(engine, [(0, parent)], look)
        said.append({name: end.request.generated for name, end in ends.items()})
        held.append(held_bytes(engine))
        assert (max(seen) > 0) == share

    assert len(said[0]) > 1
    assert said[0] == said[1]
    assert held[0] == held[1]


def test_forks_that_say_the_last_token_again_do_not_write_what_others_read(
    grid: LoadedModel, make_engine: MakeEngine
) -> None:
    said, held = [], []
    for share in (True, False):
        engine = make_engine(grid, share=share)
        known = raise_parent(engine)
        before = held_bytes(engine)["parent"]
        for name in "abc":
            engine.memory.fork("parent", name)
        # All that is cached, whose last token is fed once more; a turn that was taken back too.
        told = {"a": known[:-1], "b": known[:-3], "c": [*known, 5]}
        turns = [(n, make_request(name, told[name], [], LONG)) for n, name in enumerate("abc")]

        ends = run_engine(engine, turns)
        said.append({name: end.request.generated for name, end in ends.items()})
        held.append(held_bytes(engine))
        assert held[-1]["parent"] == before

    assert said[0] == said[1]
    assert held[0] == held[1]
