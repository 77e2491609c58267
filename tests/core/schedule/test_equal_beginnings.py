"""Beginnings that are known in two ways, and those that one turn may wait for and another not."""

from collections.abc import Sequence

from makers import LoadGrid, MakeEngine, prompt_of

from kvactors import Sampling
from kvactors.core.arena.pieces import LONGEST_PIECE
from kvactors.core.conversation.hashing import tokens_hash
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.engine.prefix_sharing import MOST_LENT
from kvactors.core.schedule.eviction import IdleAgent
from kvactors.core.schedule.request import Request
from kvactors.core.testing.engines import make_request, run_engine

ANSWER = Sampling(max_tokens=4)
WORLD = prompt_of(1400)
# Holds four agents of some 700 tokens, and a turn of as many.
BUDGET = 3_500_000


def turn(name: str, common: Sequence[int], system: int, number: int) -> Request:
    """A turn that begins with what is `common`, of which the first `system` tokens are its system
    prompt, and goes on in a way of its own."""
    prompt = [*common, 100 + number, *prompt_of(9, seed=number)]
    request = make_request(name, [], prompt, ANSWER)
    request.tenant, request.shared = "", system
    request.prompt_hash = tokens_hash(prompt[:system])
    return request


def test_a_system_prompt_of_whole_blocks_is_found_when_who_had_it_is_gone(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    first, second = (turn(name, WORLD[:512], 512, n) for n, name in enumerate("ab"))
    run_engine(engine, [(0, first)])
    engine.memory.hot.drop("a")

    run_engine(engine, [(0, second)])

    assert second.kept == 0
    assert engine.stats()["shared_tokens"] == 0


def test_the_more_urgent_waits_for_its_system_prompt_though_more_is_prefilled(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    low, high = turn("low", WORLD, 900, 1), turn("high", WORLD[:1200], 900, 2)
    high.priority = 1
    engine.submit(low)
    engine.step()
    assert low.cached < 900

    run_engine(engine, [(0, high)])

    assert high.kept >= 900


def test_what_nobody_remembers_is_lent_to_who_begins_alike_while_there_is_room(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid(), stored=True)
    turns = [turn(f"{number}", WORLD[:700], 0, number) for number in range(MOST_LENT + 3)]
    ends = list[int]()

    for request in turns:
        request.lends = True
        (event,) = run_engine(engine, [(0, request)]).values()
        assert event.exported == ()
        engine.memory.hot.drop(request.agent_id)
        ends.append(len(engine.memory.hot))
        engine.check()

    assert [request.kept for request in turns] == [0] + [700] * (MOST_LENT + 2)
    assert ends == [*range(1, MOST_LENT + 1), *[MOST_LENT] * 3]


def test_a_short_text_is_lent_to_nobody(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    engine = make_engine(load_grid())
    request = turn("a", WORLD[:100], 0, 1)
    request.lends = True

    run_engine(engine, [(0, request)])

    assert not list(engine.memory.hot)


def test_while_one_decodes_others_begin_with_what_it_has_kept_of_its_prompt(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    first, second = (turn(name, WORLD, 0, n) for n, name in enumerate("ab"))
    first.sampling = Sampling(max_tokens=60)
    engine.submit(first)
    while not first.decoded:
        engine.step()

    ended = run_engine(engine, [(0, second)])

    assert second.kept == LONGEST_PIECE
    assert ended["a"].request.decoded == 60


def test_no_agent_leaves_memory_for_what_nobody_remembers(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    engine = make_engine(loaded, budget=BUDGET)
    agents = [turn(f"agent {n}", prompt_of(700, seed=n), 0, n) for n in range(3)]
    texts = [turn(f"text {n}", prompt_of(700, seed=50 + n), 0, n) for n in range(20)]
    for request in agents:
        run_engine(engine, [(0, request)])
    here = set(engine.memory.hot)

    for request in texts:
        request.lends = True
        run_engine(engine, [(0, request)])
        engine.memory.hot.drop(request.agent_id)
        engine.check()

    assert here == {request.agent_id for request in agents}
    assert here < set(engine.memory.hot)


def test_what_is_lent_is_no_matter_of_a_policy(load_grid: LoadGrid) -> None:
    idle = set[str]()

    def policy(agents: Sequence[IdleAgent], _now: float) -> list[str]:
        idle.update(agent.agent_id for agent in agents)
        return sorted(idle)

    engine = Engine(load_grid(), EngineConfig(16, BUDGET, stored=False, eviction=policy))
    run_engine(engine, [(0, turn("agent", prompt_of(700, seed=1), 0, 1))])
    text = turn("text", prompt_of(700, seed=2), 0, 1)
    text.lends = True
    run_engine(engine, [(0, text)])
    engine.memory.hot.drop("text")
    (lent,) = {*engine.memory.hot} - {"agent"}

    assert engine.memory.evict_until(lambda: len(engine.memory.hot) == 1, ())
    assert list(engine.memory.hot) == ["agent"]
    assert engine.memory.evict_until(lambda: not len(engine.memory.hot), ())

    assert lent != "text"
    assert idle == {"agent"}


def test_no_name_is_that_of_what_is_lent(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    names = set[str]()
    for _ in range(2):
        engine = make_engine(load_grid())
        request = turn("text", WORLD, 0, 1)
        request.lends = True
        run_engine(engine, [(0, request)])
        names |= {*engine.memory.hot} - {"text"}

    assert len(names) == 2


def test_what_nobody_remembers_needs_no_more_room_than_it_takes(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    passing, lends = (turn(name, WORLD, 0, 1) for name in "ab")
    passing.passing, lends.lends = True, True

    assert engine.memory.least(lends) == engine.memory.least(passing)
