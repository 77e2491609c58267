"""KV in float until an agent outgrows `float_tokens`: each turn as over a cache of its form alone.

The oracle of every turn is a model with one form of KV, float or 4 bits, to which the ledger is
told from its beginning: hot, warm, forked and rewound agents must answer as it does, to the bit.
"""

from typing import Any

import numpy as np
import pytest
from forms import LIMIT, Life, expected, load, new_engine, run, tell
from hypothesis import given, settings
from hypothesis import strategies as st
from makers import prompts_of
from seeded import Bug, bug, seeded

from kvactors.actors import Sampling
from kvactors.core.arena.wire import layout
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.engine.hot_cache import HotCache
from kvactors.core.errors import TurnFailed
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.scheduler import Scheduler
from kvactors.core.testing.engines import make_request

# -- exactness -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "gemma2", "deepseek_v3", "falcon_h1"])
def test_turns_of_both_forms_together_answer_as_each_alone_over_a_cache_of_its_form(
    kind: str,
) -> None:
    asked = prompts_of(
        (
            5,
            LIMIT + 1,
            300,
            LIMIT,
            40,
            100,
        )
    )
    lives = [Life(str(number)) for number in range(len(asked))]

    turns = [life.turn(prompt) for life, prompt in zip(lives, asked, strict=True)]
    ended = run(new_engine(kind), lives, turns)

    assert [turn.form.index for turn in ended] == [True, False, False, True, True, False]
    for turn, prompt in zip(ended, asked, strict=True):
        assert turn.generated == expected(prompt, kind=kind)


def test_an_agent_that_outgrows_the_limit_begins_over_once() -> None:
    engine, life, told = (
        new_engine(),
        Life("a"),
        prompts_of(
            (
                30,
                9,
                9,
                9,
                9,
            )
        ),
    )

    turns = [tell(engine, life, new) for new in told]

    # 30, 47, 64, 81, 98 tokens when they begin.
    assert [turn.form.index for turn in turns] == [True, True, False, False, False]
    assert [turn.cache_state for turn in turns] == ["cold", "hot", "cold", "hot", "hot"]
    assert [turn.kept for turn in turns] == [0, 37, 0, 71, 88]
    in_bits = layout(load().spec)
    assert {part.layout for part in life.in_store()} == {in_bits}
    assert life.in_store()[0].start == 0


def test_an_answer_that_crosses_the_limit_stays_in_its_form_to_the_end() -> None:
    engine, life = new_engine(), Life("a")
    (prompt,) = prompts_of((LIMIT,))
    long = Sampling(max_tokens=20)

    (turn,) = run(engine, [life], [life.turn(prompt, long)])

    assert turn.generated == expected(prompt, long)
    assert {part.layout for part in life.in_store()} == {layout(load().spec.in_float())}
    assert not tell(engine, life, [7]).form.index


@pytest.mark.parametrize("restarted", [False, True])
def test_an_agent_rewound_below_the_limit_is_in_float_again(restarted: bool) -> None:
    engine, life, (first, second) = (
        new_engine(),
        Life("a"),
        prompts_of(
            (
                40,
                40,
            )
        ),
    )
    tell(engine, life, first)
    tell(engine, life, second)
    life.tokens = life.tokens[:45]

    rewound = tell(new_engine() if restarted else engine, life, [3, 1])

    assert (rewound.form.index, rewound.kept) == (True, 0)


def test_a_fork_crosses_the_limit_without_its_parent() -> None:
    engine, parent, (first,) = new_engine(), Life("parent"), prompts_of((40,))
    tell(engine, parent, first)
    before = engine.stats()["hot_bytes"]
    child = Life("child", list(parent.tokens), dict(parent.stored))

    engine.memory.fork("parent", "child")

    assert engine.stats()["hot_bytes"] == before
    run(engine, [parent, child], [parent.turn([4]), child.turn([9] * 20)])
    assert tell(engine, child, [2]).cache_state == "hot"
    assert tell(engine, parent, [5]).cache_state == "hot"


actions = st.lists(
    st.tuples(
        st.integers(0, 2), st.integers(1, 50), st.sampled_from(["tell", "tell", "rewind", "evict"])
    ),
    min_size=2,
    max_size=5,
)


@settings(max_examples=8)
@given(st.lists(actions, min_size=1, max_size=3), st.integers(0, 99))
def test_any_life_on_both_sides_of_the_limit_is_as_the_oracle_has_it(
    rounds: list[list[tuple[int, int, str]]], seed: int
) -> None:
    live(new_engine(), rounds, seed)


def live(engine: Engine, rounds: list[list[tuple[int, int, str]]], seed: int) -> None:
    """Rounds of turns, in company; before it an agent may be cut, or leave memory."""
    lives, rng = [Life(str(number)) for number in range(3)], np.random.default_rng(seed)
    for chosen in rounds:
        turns: dict[int, tuple[Request, list[int]]] = {}
        for number, length, action in chosen:
            life = lives[number]
            if number in turns:
                continue
            if action == "rewind":
                life.tokens = life.tokens[: 2 * len(life.tokens) // 3]
            elif action == "evict":
                engine.forget(life.name)
            turn = life.turn(rng.integers(1, 128, length).tolist())
            turns[number] = turn, list(turn.tokens)
        run(engine, lives, [turn for turn, _ in turns.values()])
        for turn, told in turns.values():
            assert turn.generated == expected(told)


def test_stored_kv_is_adopted_only_as_far_as_it_has_the_turns_form(
    caplog: pytest.LogCaptureFixture,
) -> None:
    life, other = Life("a"), Life("b")
    tell(new_engine(), life, prompts_of((300,))[0])
    assert sorted(life.stored) == [0, 256]
    load_float = Engine(load("llama", None, 0), EngineConfig(1, 1 << 30, True))
    saved = life.stored[256]
    told = make_request("b", [], life.tokens[: saved.end], Sampling(), answer=False)
    run(load_float, [other], [told])
    # As if two saves had been mixed up: the hashes of the tokens are the same.
    life.stored[256] = mixed_up = other.stored[256]
    assert (mixed_up.end, mixed_up.tokens_hash) == (saved.end, saved.tokens_hash)

    turn = tell(new_engine(), life, [1])

    assert (turn.cache_state, turn.kept) == ("warm", 256)
    # Another form is no damage.
    assert "left out" not in caplog.text


def test_kv_is_read_ahead_in_the_form_that_it_has() -> None:
    for length in (30, 300):
        life, engine = Life("a"), new_engine()
        tell(new_engine(), life, prompts_of((length,))[0])

        engine.prefetch("a", life.tokens)
        run(engine, [life], [])

        assert engine.stats()["hot_tokens"] == len(life.tokens) - 1
        assert tell(engine, life, [1]).cache_state == "hot"


@pytest.mark.slow
@pytest.mark.usefixtures("work_of_a_cpu")
def test_under_a_small_budget_turns_of_both_forms_give_way_and_answer_the_same() -> None:
    engine, asked = (
        new_engine(budget=1_250_000),
        prompts_of(
            (
                30,
                200,
                50,
                200,
                60,
            ),
            seed=1,
        ),
    )
    lives, long = [Life(str(number)) for number in range(len(asked))], Sampling(max_tokens=100)

    turns = [life.turn(prompt, long) for life, prompt in zip(lives, asked, strict=True)]
    ended = run(engine, lives, turns)

    assert engine.stats()["preemptions"] > 0
    for turn, prompt in zip(ended, asked, strict=True):
        assert turn.generated == expected(prompt, long)


# -- bugs put in on purpose ----------------------------------------------------------------

LIVES: list[list[tuple[int, int, str]]] = [
    # The first prompt takes two chunks: the second comes beside it.
    [(2, 300, "tell"), (0, 30, "tell"), (1, 50, "tell")],
    [(0, 9, "tell"), (1, 30, "tell"), (2, 9, "evict")],
    [(0, 40, "evict"), (1, 9, "rewind"), (2, 9, "rewind")],
]


@bug(Engine, "submit")
def a_form_by_what_is_new(true: Any) -> Any:
    def submit(self: Engine, request: Request) -> None:
        prompt, request.prompt = request.prompt, request.fresh
        true(self, request)
        request.prompt = prompt

    return submit


@bug(HotCache, "in_form")
def a_cache_of_any_form_is_begun_with(true: Any) -> Any:
    return lambda self, spec: True


@bug(Scheduler, "plan")
def turns_of_both_forms_share_a_prefill(true: Any) -> Any:
    def plan(self: Any, prefilling: Any, decoding: Any) -> Any:
        forms = [request.form for request in prefilling]
        for request in prefilling:
            request.form = forms[0]
        return true(self, prefilling, decoding)

    return plan


def test_without_a_bug_the_oracle_agrees() -> None:
    live(new_engine(), LIVES, 3)


@pytest.mark.parametrize(
    "seed",
    [
        a_form_by_what_is_new,
        a_cache_of_any_form_is_begun_with,
        turns_of_both_forms_share_a_prefill,
    ],
    ids=str,
)
def test_the_oracle_catches(seed: Bug) -> None:
    with seeded(seed), pytest.raises((AssertionError, KeyError, TurnFailed)):
        live(new_engine(), LIVES, 3)
