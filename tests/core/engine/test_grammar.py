"""Answers that have a grammar, in the engine: exact in any company, and after any interruption."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from seeded import bug, seeded

from kvactors import Grammar, Sampling
from kvactors.core.engine.engine import Engine
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.guide import Guide
from kvactors.core.schedule.request import Request
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import Faulty, PlainTokenizer, snap_to_grid, tiny_model

MakeEngine = Callable[..., Engine]
LoadGrid = Callable[..., LoadedModel]
Apart = Callable[[], dict[str, list[int]]]

JSON = Grammar.json_schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1},
            "size": {"type": "number"},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
)
TRAP = Grammar.regex("([a-m][0-9]{60}|[n-z]){25,}!")
EVERYTHING = Grammar.regex("(?s:.*)")
# Bytes in which six long turns do not all fit at once.
SHORT_OF_MEMORY = 5 * 340 * 320
FORMS = [
    Sampling(max_tokens=60, grammar=JSON),
    Sampling(max_tokens=34),
    Sampling(max_tokens=40, grammar=TRAP, temperature=3.0, seed=4),
    Sampling(max_tokens=50, grammar=JSON, temperature=2.0, repetition_penalty=1.3, seed=5),
    Sampling(max_tokens=29, temperature=1.5, top_p=0.9, seed=6),
    Sampling(max_tokens=45, grammar=TRAP, temperature=9.0, top_k=90, seed=7),
]


def turns() -> list[Request]:
    prompts = [[row + 3, 77, 21, 40 + row] * (2 + 5 * row) for row in range(len(FORMS))]
    return [
        make_request(f"{row}", [], prompt, form, stop_tokens=[0])
        for row, (prompt, form) in enumerate(zip(prompts, FORMS, strict=True))
    ]


def said(ended: dict[str, Any]) -> dict[str, list[int]]:
    return {name: end.request.generated for name, end in ended.items()}


def alone(loaded: LoadedModel, make_engine: MakeEngine) -> dict[str, list[int]]:
    return {
        name: tokens
        for request in turns()
        for name, tokens in said(run_engine(make_engine(loaded), [(0, request)])).items()
    }


@pytest.fixture(scope="module")
def apart(load_grid: LoadGrid, make_engine: MakeEngine) -> Apart:
    """What a grid model says in each of the turns alone, found out once."""
    return cache(lambda: alone(load_grid(), make_engine))


def text(tokens: list[int]) -> str:
    return "".join(map(chr, tokens)).rstrip("\0")


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "recurrent"])
def test_rows_with_and_without_a_grammar_do_not_change_each_other(
    load_grid: LoadGrid, load_family: LoadGrid, make_engine: MakeEngine, apart: Apart, family: str
) -> None:
    loaded = load_grid() if family == "llama" else load_family("qwen3_next")
    expected = apart() if family == "llama" else alone(loaded, make_engine)
    replaced: list[int] = []

    @bug(Guide, "take")
    def watched(true: Any) -> Any:
        def take(guide: Guide, token: int) -> int:
            taken: int = true(guide, token)
            replaced.extend([token] * (taken != token))
            return taken

        return take

    with seeded(watched):
        arrivals = [(4 * row, request) for row, request in enumerate(turns())]
        together = said(run_engine(make_engine(loaded), arrivals))

    assert together == expected
    assert replaced, "no token was taken back: the test says too little"
    for row in (0, 3):
        assert {"name", "tags"} <= set(json.loads(text(together[f"{row}"])))
    assert all(text(together[f"{row}"]).endswith("!") for row in (2, 5))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_a_grammar_that_allows_everything_changes_nothing(
    load_grid: LoadGrid, make_engine: MakeEngine, temperature: float
) -> None:
    def run(grammar: Grammar | None) -> list[int]:
        form = Sampling(max_tokens=40, temperature=temperature, seed=3, grammar=grammar)
        request = make_request("a", [], [9, 3, 77] * 5, form, stop_tokens=[0])
        run_engine(make_engine(load_grid()), [(0, request)])
        return request.generated

    assert run(EVERYTHING) == run(None)


def long_turns() -> list[Request]:
    form = Sampling(max_tokens=300, grammar=Grammar.regex("[a-y ]{250,}z"))
    return [make_request(f"{n}", [], [n + 1] * 40, form, stop_tokens=[0]) for n in range(6)]


@pytest.mark.slow
def test_turns_that_give_way_go_on_with_their_grammars(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    calm, short = make_engine(loaded), make_engine(loaded, budget=SHORT_OF_MEMORY)
    expected = said(run_engine(calm, [(0, request) for request in long_turns()]))

    ended = said(run_engine(short, [(0, request) for request in long_turns()]))

    assert short.stats()["preemptions"] > 0
    assert ended == expected
    assert all(text(tokens).endswith("z") for tokens in ended.values())


@pytest.mark.slow
def test_a_guide_that_does_not_follow_its_turn_is_seen(
    load_grid: LoadGrid, make_engine: MakeEngine, apart: Apart
) -> None:
    @bug(Guide, "follow")
    def begins_again(true: Any) -> Any:
        return lambda guide, tokens: true(guide, [])

    engine = make_engine(load_grid())

    with seeded(begins_again):
        found = said(run_engine(engine, [(0, request) for request in turns()]))

    guided = {f"{row}" for row, form in enumerate(FORMS) if form.grammar}
    assert {name for name, tokens in apart().items() if found[name] != tokens} == guided


def test_a_step_that_fails_costs_no_row_its_grammar(make_engine: MakeEngine, apart: Apart) -> None:
    model = Faulty(snap_to_grid(tiny_model()))
    loaded = load_model(lambda: (model, PlainTokenizer()), ModelOptions(attention="packed"))

    def fails(step: int) -> None:
        if step == 25:
            model.arm(step=0)

    together = said(run_engine(make_engine(loaded), [(0, turn) for turn in turns()], fails))

    assert together == apart()


def test_turns_go_on_with_their_grammars_in_an_engine_that_was_built_anew(
    load_grid: LoadGrid, make_engine: MakeEngine, apart: Apart
) -> None:
    loaded = load_grid()
    broken = make_engine(loaded)
    for request in turns():
        broken.submit(request)
    for _ in range(5):
        broken.step()

    _, left, backlog = broken.abandon()
    again = make_engine(loaded)
    again.resume(left, backlog)

    assert len(left) == len(FORMS)
    assert said(run_engine(again, [])) == apart()


def test_an_answer_ends_when_nothing_can_follow(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    sampling = Sampling(grammar=Grammar.regex("yes|no"))
    request = make_request("a", [], [9, 3, 77], sampling, stop_tokens=[0])

    (ended,) = run_engine(make_engine(load_grid()), [(0, request)]).values()

    assert text(request.generated) in ("yes", "no")
    assert ended.reason == "stop"
