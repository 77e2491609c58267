"""KV in float until an agent outgrows `float_tokens`: each turn as over a cache of its form alone.

The oracle of every turn is a model with one form of KV, float or 4 bits, to which the ledger is
told from its beginning: hot, warm, forked and rewound agents must answer as it does, to the bit.
"""

import functools
import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seeded import Bug, bug, seeded

from kvactors.actors import AgentSystem, ExportRejected, Reply, Sampling
from kvactors.core.arena.wire import layout
from kvactors.core.cache.exported import ExportedKV
from kvactors.core.engine.engine import Engine, EngineConfig
from kvactors.core.engine.hot_cache import HotCache
from kvactors.core.errors import InvalidConfig, TurnFailed
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.events import Finished, KVNeeded
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.scheduler import Scheduler
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer, snap_to_grid, tiny_model
from kvactors.persistence.store.store import Store

OpenSystem = Callable[..., AgentSystem]
LIMIT = 60
WAIT = 120
ANSWER = Sampling(max_tokens=8)
IN_FLOAT, IN_BITS = 2 * 2 * 64 * 4 * 2, 2 * 2 * 2 * (32 + 8)


@functools.cache
def grid_model(kind: str) -> Any:
    return snap_to_grid(tiny_model() if kind == "llama" else build(kind))


@functools.cache
def load(kind: str = "llama", kv_bits: Any = 4, float_tokens: int = LIMIT) -> LoadedModel:
    options = ModelOptions(kv_bits=kv_bits, float_tokens=float_tokens, attention="packed")
    return load_model(lambda: (grid_model(kind), PlainTokenizer()), options)


def new_engine(kind: str = "llama", budget: int = 1 << 30) -> Engine:
    return Engine(load(kind), EngineConfig(8, budget, True))


@functools.cache
def oracle(kind: str, kv_bits: int | None) -> Engine:
    return Engine(load(kind, kv_bits, 0), EngineConfig(1, 1 << 30, False))


def expected(tokens: Sequence[int], sampling: Sampling = ANSWER, kind: str = "llama") -> list[int]:
    """What is answered to a ledger of these tokens by a cache of its one form."""
    engine = oracle(kind, None if len(tokens) <= LIMIT else 4)
    end = run_engine(engine, [(0, make_request("alone", [], tokens, sampling))])["alone"]
    engine.forget("alone")
    return end.request.generated


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(1, 128, length).tolist() for length in lengths]


@dataclass
class Life:
    """An agent's ledger, and its KV as a store has it."""

    name: str
    tokens: list[int] = field(default_factory=list)
    stored: dict[int, ExportedKV] = field(default_factory=dict)

    def turn(self, new: Sequence[int], sampling: Sampling = ANSWER) -> Request:
        return make_request(self.name, self.tokens, new, sampling)

    def end(self, finished: Finished) -> None:
        self.tokens = finished.request.tokens
        for part in finished.exported:
            self.stored = {start: p for start, p in self.stored.items() if start < part.start}
            self.stored[part.start] = part

    def in_store(self) -> list[ExportedKV]:
        return [self.stored[start] for start in sorted(self.stored)]


def run(engine: Engine, lives: Sequence[Life], requests: Sequence[Request]) -> list[Request]:
    """Turns that arrive one after the other, and run together; what is stored is given back."""
    by_name = {life.name: life for life in lives}
    waiting = list(requests)
    while waiting or engine.busy:
        if waiting:
            engine.submit(waiting.pop(0))
        for event in engine.step():
            if isinstance(event, KVNeeded):
                engine.provide(event.agent_id, by_name[event.agent_id].in_store())
            elif isinstance(event, Finished):
                by_name[event.request.agent_id].end(event)
                sent = sum(part.nbytes for part in event.exported)
                engine.saved(event.request.agent_id, sent)
        engine.check()
    return list(requests)


def tell(engine: Engine, life: Life, new: Sequence[int]) -> Request:
    """One turn, which must be as the oracle has it."""
    told = [*life.tokens, *new]
    (request,) = run(engine, [life], [life.turn(new)])
    assert request.generated == expected(told)
    assert request.in_float == (len(told) <= LIMIT)
    return request


# -- exactness -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "gemma2", "deepseek_v3", "falcon_h1"])
def test_turns_of_both_forms_together_answer_as_each_alone_over_a_cache_of_its_form(
    kind: str,
) -> None:
    asked = prompts(5, LIMIT + 1, 300, LIMIT, 40, 100)
    lives = [Life(str(number)) for number in range(len(asked))]

    turns = [life.turn(prompt) for life, prompt in zip(lives, asked, strict=True)]
    ended = run(new_engine(kind), lives, turns)

    assert [turn.in_float for turn in ended] == [True, False, False, True, True, False]
    for turn, prompt in zip(ended, asked, strict=True):
        assert turn.generated == expected(prompt, kind=kind)


def test_an_agent_that_outgrows_the_limit_begins_over_once() -> None:
    engine, life, told = new_engine(), Life("a"), prompts(30, 9, 9, 9, 9)

    turns = [tell(engine, life, new) for new in told]

    # 30, 47, 64, 81, 98 tokens when they begin.
    assert [turn.in_float for turn in turns] == [True, True, False, False, False]
    assert [turn.cache_state for turn in turns] == ["cold", "hot", "cold", "hot", "hot"]
    assert [turn.kept for turn in turns] == [0, 37, 0, 71, 88]
    in_bits = layout(load().spec)
    assert {part.layout for part in life.in_store()} == {in_bits}
    assert life.in_store()[0].start == 0


def test_an_answer_that_crosses_the_limit_stays_in_its_form_to_the_end() -> None:
    engine, life = new_engine(), Life("a")
    (prompt,) = prompts(LIMIT)
    long = Sampling(max_tokens=20)

    (turn,) = run(engine, [life], [life.turn(prompt, long)])

    assert turn.generated == expected(prompt, long)
    assert {part.layout for part in life.in_store()} == {layout(load().spec.in_float())}
    assert not tell(engine, life, [7]).in_float


@pytest.mark.parametrize("restarted", [False, True])
def test_an_agent_rewound_below_the_limit_is_in_float_again(restarted: bool) -> None:
    engine, life, (first, second) = new_engine(), Life("a"), prompts(40, 40)
    tell(engine, life, first)
    tell(engine, life, second)
    life.tokens = life.tokens[:45]

    rewound = tell(new_engine() if restarted else engine, life, [3, 1])

    assert (rewound.in_float, rewound.kept) == (True, 0)


def test_a_fork_crosses_the_limit_without_its_parent() -> None:
    engine, parent, (first,) = new_engine(), Life("parent"), prompts(40)
    tell(engine, parent, first)
    before = engine.stats()["hot_bytes"]
    child = Life("child", list(parent.tokens), dict(parent.stored))

    engine.fork("parent", "child")

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


# -- the store -----------------------------------------------------------------------------


def grid() -> tuple[Any, PlainTokenizer]:
    return snap_to_grid(tiny_model()), PlainTokenizer()


def said(system: AgentSystem, agent_id: str, prompt: list[int]) -> Reply:
    reply: Reply = system.spawn(agent_id).ask(prompt, sampling=ANSWER).get(timeout=WAIT)
    assert reply.cached.get(timeout=WAIT)
    return reply


def test_an_agent_restarted_in_either_form_is_as_one_that_never_stopped(
    open_grid: OpenSystem, tmp_path: Path
) -> None:
    told = prompts(30, 9, 9, 9)
    stayed = open_grid(grid, float_tokens=LIMIT, store=tmp_path / "stayed")
    due = [said(stayed, "a", new) for new in told]

    for new, answer, cache in zip(told, due, ["cold", "warm", "cold", "warm"], strict=True):
        system = open_grid(grid, float_tokens=LIMIT)
        reply = said(system, "a", new)
        fingerprint = system.info.fingerprint
        system.stop(timeout=WAIT)
        assert (reply.cache, reply.token_ids) == (cache, answer.token_ids)
        store = Store(tmp_path / "store")
        (stored,) = {part.layout for part in store.read_kv("a", fingerprint)}
        store.close()
        in_float = reply.usage.prompt_tokens <= LIMIT
        assert stored == layout(load().forms[in_float].spec)


def test_stored_kv_is_adopted_only_as_far_as_it_has_the_turns_form() -> None:
    life, other = Life("a"), Life("b")
    tell(new_engine(), life, prompts(300)[0])
    assert sorted(life.stored) == [0, 256]
    load_float = Engine(load("llama", None, 0), EngineConfig(1, 1 << 30, True))
    other.tokens = life.tokens
    run(load_float, [other], [Life("b").turn(life.tokens)])
    # As if two saves had been mixed up: the hashes of the tokens are the same.
    life.stored[256] = other.stored[256]

    turn = tell(new_engine(), life, [1])

    assert (turn.cache_state, turn.kept) == ("warm", 256)


def test_kv_is_read_ahead_in_the_form_that_it_has() -> None:
    for length in (30, 300):
        life, engine = Life("a"), new_engine()
        tell(new_engine(), life, prompts(length)[0])

        engine.prefetch("a", life.tokens)
        run(engine, [life], [])

        assert engine.stats()["hot_tokens"] == len(life.tokens) - 1
        assert tell(engine, life, [1]).cache_state == "hot"


def test_an_agent_in_float_goes_to_files_and_back(open_grid: OpenSystem, tmp_path: Path) -> None:
    system = open_grid(grid, float_tokens=LIMIT)
    said(system, "a", prompts(30)[0])
    with pytest.raises(ExportRejected, match="use fp16-flat, mlx-lm or archive"):
        system.export_agent("a", tmp_path / "a.q4", format="q4-flat")

    system.export_agent("a", tmp_path / "a.kva")
    system.import_agent(tmp_path / "a.kva", "b")

    reply = said(system, "b", [7, 8])
    assert reply.cache == "warm"
    assert reply.token_ids == said(system, "a", [7, 8]).token_ids


def test_a_system_prompt_is_shared_by_agents_of_one_form(open_grid: OpenSystem) -> None:
    prompt = "Remember all, word by word, in order. " * 8
    options: dict[str, Any] = {"float_tokens": len(prompt) + 40, "store": False}
    system = open_grid(grid, **options)
    texts = {"a": "One?", "b": "Two?", "c": "x" * 60, "d": "y" * 60}

    replies = {
        name: system.spawn(name, system_prompt=prompt).ask(text, sampling=ANSWER).get(timeout=WAIT)
        for name, text in texts.items()
    }

    reused = [reply.usage.reused_tokens for reply in replies.values()]
    assert reused == [0, len(prompt), 0, len(prompt)]
    alone = open_grid(grid, isolation="strict", **options)
    for name, text in texts.items():
        again = alone.spawn(name, system_prompt=prompt).ask(text, sampling=ANSWER)
        assert again.get(timeout=WAIT).token_ids == replies[name].token_ids


# -- memory --------------------------------------------------------------------------------


def test_what_is_in_float_is_counted_by_its_own_bytes(open_grid: OpenSystem) -> None:
    gc.collect()
    system = open_grid(grid, float_tokens=LIMIT, store=False)
    before = system.stats()["hot_bytes"]
    said_short = system.spawn("short").ask(prompts(50)[0], sampling=ANSWER).get(timeout=WAIT)
    short = system.stats()["hot_bytes"]
    said_long = system.spawn("long").ask(prompts(300)[0], sampling=ANSWER).get(timeout=WAIT)
    stats = system.stats()

    assert short - before == (49 + len(said_short.token_ids)) * IN_FLOAT
    assert stats["hot_bytes"] - short == (299 + len(said_long.token_ids)) * IN_BITS
    counted = stats["hot_bytes"] + stats["active_bytes"] + stats["backlog_bytes"]
    assert abs(stats["mlx_bytes"] - counted) < 0.1 * counted


def test_under_a_small_budget_turns_of_both_forms_give_way_and_answer_the_same() -> None:
    engine, asked = new_engine(budget=1_200_000), prompts(30, 200, 50, 200, 60, seed=1)
    lives, long = [Life(str(number)) for number in range(len(asked))], Sampling(max_tokens=100)

    turns = [life.turn(prompt, long) for life, prompt in zip(lives, asked, strict=True)]
    ended = run(engine, lives, turns)

    assert engine.stats()["preemptions"] > 0
    for turn, prompt in zip(ended, asked, strict=True):
        assert turn.generated == expected(prompt, long)


def test_agents_of_both_forms_stay_within_the_budget(open_system: OpenSystem) -> None:
    budget, asked = 4 << 20, prompts(400, 600, 380, 700, 390, 500, 370)
    system = open_system(grid, store=False, float_tokens=400, memory_budget=budget)
    mx.reset_peak_memory()
    before = mx.get_active_memory()

    turns = [system.spawn(f"{i}").ask(new, sampling=ANSWER) for i, new in enumerate(asked)]

    for turn in turns:
        turn.get(timeout=WAIT)
    assert mx.get_peak_memory() - before <= 1.1 * budget
    assert 0 < system.stats()["evictions"] < len(asked)


# -- the policy ----------------------------------------------------------------------------


def test_the_policy_is_part_of_the_fingerprint_and_none_is_as_ever() -> None:
    off, on, more, in_float = load(float_tokens=0), load(), load(float_tokens=LIMIT + 1), None
    bits = [load("llama", in_float, limit) for limit in (0, LIMIT)]

    assert len({model.fingerprint for model in (off, on, more, bits[0])}) == 4
    plain = load_model(lambda: (grid_model("llama"), PlainTokenizer()), ModelOptions())
    assert off.fingerprint == plain.fingerprint
    assert off.forms == (off,)
    # Where nothing is quantized there is only one form.
    assert bits[0].fingerprint == bits[1].fingerprint
    assert bits[1].floats is None


@pytest.mark.parametrize("wrong", [-1, True, 1.5, "512", None, np.int64(512)])
def test_what_is_no_number_of_tokens_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidConfig, match="float_tokens must be an int of at least 0 tokens"):
        AgentSystem(grid, store=False, float_tokens=wrong)


def test_a_swap_keeps_the_policy_unless_it_is_given(open_grid: OpenSystem) -> None:
    system = open_grid(grid, float_tokens=LIMIT, store=False)
    before = system.info.fingerprint

    system.swap_model(grid, kv_bits=4)
    kept = system.info.fingerprint
    system.swap_model(grid, float_tokens=0)

    assert kept == before != system.info.fingerprint


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
        forms = [request.in_float for request in prefilling]
        for request in prefilling:
            request.in_float = forms[0]
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
