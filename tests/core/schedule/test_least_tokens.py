"""An answer of at least so many tokens: nothing ends it before."""

from dataclasses import replace

import pytest
from makers import LoadGrid, MakeEngine, prompt_of

from kvactors import Grammar, Sampling
from kvactors.core.errors import InvalidSampling
from kvactors.core.schedule.request import Request
from kvactors.core.testing.engines import make_request, run_engine

PLAIN = Sampling(max_tokens=12)
KINDS = {
    "greedy": PLAIN,
    "drawn": replace(PLAIN, temperature=0.9, top_p=0.9, seed=3, seed_alone=True),
    "with log-probabilities": replace(PLAIN, top_logprobs=2),
}


def said(engine: MakeEngine, load: LoadGrid, *requests: Request) -> list[list[int]]:
    ends = run_engine(engine(load()), [(0, request) for request in requests])
    return [ends[request.agent_id].request.generated for request in requests]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("least", [1, 4, 12, 99])
def test_no_end_of_turn_comes_before_its_time(
    load_grid: LoadGrid, make_engine: MakeEngine, kind: str, least: int
) -> None:
    sampling, prompt = KINDS[kind], prompt_of(40)
    (free,) = said(make_engine, load_grid, make_request("a", [], prompt, sampling))
    # What the model likes to say would each end it.
    ends = set(free[:6])
    rows = [
        make_request(name, [], prompt, some, stop_tokens=ends)
        for name, some in (("a", replace(sampling, min_tokens=least)), ("b", sampling))
    ]

    long, short = said(make_engine, load_grid, *rows)

    assert short == free[:1]
    assert not ends & set(long[: min(least, 12)])
    assert min(least, 12) <= len(long) <= 12
    assert len(long) == 12 or long[-1] in ends


def test_a_stop_string_ends_it_at_any_time(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    prompt = prompt_of(40)
    (free,) = said(make_engine, load_grid, make_request("a", [], prompt, PLAIN))
    stops = replace(PLAIN, stop=(chr(free[1]),), min_tokens=9)

    assert said(make_engine, load_grid, make_request("a", [], prompt, stops)) == [free[:2]]


def test_a_grammar_says_itself_where_it_ends(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    form = replace(PLAIN, grammar=Grammar.regex("[a-z]{3}"), min_tokens=9)

    (answer,) = said(make_engine, load_grid, make_request("a", [], prompt_of(40), form))

    assert len(bytes(answer).rstrip(b"\0")) == 3


def test_a_number_of_tokens_is_whole_and_none_is_less_than_none() -> None:
    for least in (-1, 1.5, "3", True):
        with pytest.raises(InvalidSampling, match="min_tokens"):
            Sampling(min_tokens=least)  # type: ignore[arg-type]
