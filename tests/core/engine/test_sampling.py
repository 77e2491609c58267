"""Sampling: each filter leaves the tokens that it says, and draws depend on all that makes them."""

import io
import math
from typing import Any

import mlx.core as mx
import pytest
from makers import LoadGrid, MakeEngine, OpenSystem, prompt_of
from mlx_lm.sample_utils import apply_min_p, apply_top_k, apply_top_p

from kvactors.actors import Reply, Sampling
from kvactors.core.engine.engine import Engine
from kvactors.core.schedule.drawing import PENALTY_CONTEXT
from kvactors.core.schedule.sampling import draw, filtered
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import grid

WAIT = 60
LIKELY = (0.5, 0.3, 0.15, 0.05)
PROMPT = prompt_of(30)


def answer(engine: Engine, *, turn: int = 0, agent: str = "a", **sampling: Any) -> list[int]:
    asked = make_request(agent, [], PROMPT, Sampling(max_tokens=40, **sampling), turn=turn)
    said: list[int] = run_engine(engine, [(0, asked)])[agent].request.generated
    return said


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        ({}, {0, 1, 2, 3}),
        ({"top_p": 0.7}, {0, 1}),
        ({"top_p": 0.9}, {0, 1, 2}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 1}, {0}),
        ({"min_p": 0.2}, {0, 1, 2}),
        ({"min_p": 0.5, "top_p": 0.9}, {0, 1}),
    ],
    ids=str,
)
def test_a_filter_leaves_the_likely_tokens_and_each_of_them_is_drawn(
    filters: dict[str, Any], left: set[int]
) -> None:
    logits = mx.array([math.log(likely) for likely in LIKELY])
    sampling = Sampling(temperature=1.0, **filters)

    drawn = {draw(logits, sampling.filters, mx.random.key(key), None).item() for key in range(300)}

    assert drawn == left


@pytest.mark.parametrize("seed", range(8))
def test_filters_leave_what_mlx_lms_leave_to_the_bit(seed: int) -> None:
    keys = mx.random.split(mx.random.key(seed), 4)
    top_p, min_p = (float(mx.random.uniform(key=key)) for key in keys[:2])
    top_k = int(mx.random.randint(1, 300, key=keys[2]))
    # Halves are often alike; and what a grammar does not allow has no chance.
    logits = mx.round(mx.random.normal((1, 3000), scale=3.0, key=keys[3]) * 2) / 2 ** (seed % 2)
    logits[:, seed::8] = -mx.inf
    row = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    mx.disable_compile()
    try:
        expected = [apply_top_p(row, top_p), apply_min_p(row, min_p), apply_top_k(row, top_k)]
        both = apply_top_k(apply_min_p(apply_top_p(row, top_p), min_p), top_k)
    finally:
        mx.enable_compile()

    alone = Sampling(top_p=top_p), Sampling(min_p=min_p), Sampling(top_k=top_k)
    together = Sampling(top_p=top_p, min_p=min_p, top_k=top_k)
    found = [filtered(row, sampling.filters) for sampling in (*alone, together)]

    assert all(map(mx.array_equal, found, [*expected, both]))


def test_a_draw_waits_for_no_compiler() -> None:
    sampling = Sampling(temperature=0.8, top_p=0.713, min_p=0.0171, top_k=3)
    graph = io.StringIO()

    mx.export_to_dot(graph, draw(mx.arange(9.0), sampling.filters, mx.random.key(0), None))

    assert "Sort" in graph.getvalue()
    assert "Compiled" not in graph.getvalue()


@pytest.mark.parametrize("filters", [{"top_p": 1e-6}, {"top_k": 1}, {"min_p": 1.0}], ids=str)
def test_an_engine_draws_through_the_filters(
    load_grid: LoadGrid, make_engine: MakeEngine, filters: dict[str, Any]
) -> None:
    greedy = answer(make_engine(load_grid()))

    free = answer(make_engine(load_grid()), temperature=1.0)
    filtered = answer(make_engine(load_grid()), temperature=1.0, **filters)

    assert free != greedy
    assert filtered == greedy


def test_a_penalty_beyond_measure_repeats_none_of_the_latest_tokens(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    free = repeats(answer(make_engine(load_grid())))

    penalized = answer(make_engine(load_grid()), repetition_penalty=1e30)

    assert free > 0
    assert repeats(penalized) == 0


def repeats(said: list[int]) -> int:
    """Tokens that are among those that the penalty looks at."""
    tokens = [*PROMPT, *said]
    places = range(len(PROMPT), len(tokens))
    return sum(tokens[at] in tokens[at - PENALTY_CONTEXT : at] for at in places)


def test_draws_do_not_depend_on_when_others_begin(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    sampling = Sampling(max_tokens=40, temperature=1.0)
    alone = answer(make_engine(load_grid()), temperature=1.0)

    asked = make_request("a", [], PROMPT, sampling)
    others = [(3 * n, make_request(f"{n}", [], prompt_of(40, n), sampling)) for n in range(1, 9)]
    run_engine(make_engine(load_grid()), [(0, asked), *others])

    assert asked.generated == alone
    assert len({tuple(other.generated) for _, other in others}) == 8


@pytest.mark.parametrize("other", [{"turn": 1}, {"agent": "b"}, {"seed": 1}], ids=str)
def test_draws_differ_by_turn_agent_and_seed_and_by_nothing_else(
    load_grid: LoadGrid, make_engine: MakeEngine, other: dict[str, Any]
) -> None:
    first = answer(make_engine(load_grid()), temperature=1.0)

    again = answer(make_engine(load_grid()), temperature=1.0)
    another = answer(make_engine(load_grid()), temperature=1.0, **other)

    assert again == first
    assert another != first


def test_the_same_tokens_as_a_second_turn_are_answered_with_other_draws(
    open_grid: OpenSystem,
) -> None:
    system = open_grid(grid, store=False)
    sampling = Sampling(max_tokens=20, temperature=1.0)

    def told(*texts: str) -> tuple[int, ...]:
        agent = system.spawn("alice")
        for text in texts[:-1]:
            agent.observe(text)
        reply: Reply = agent.ask(texts[-1], sampling=sampling).get(timeout=WAIT)
        tokens = agent.transcript().token_ids
        system.forget("alice")
        assert tokens == (*b"One after the other", *reply.token_ids)
        return reply.token_ids

    once = told("One after the other")

    assert told("One after the other") == once
    assert told("One after", " the other") != once
