"""Log-probabilities of what is drawn and of prompts: the model's own, whoever shares the batch."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from makers import LoadGrid, MakeEngine, Ticks, prompt_of, prompts_of
from oracle import free_run, mlx_lm_caches
from seeded import bug, seeded

from kvactors.actors import AgentSystem, Sampling
from kvactors.core.engine.engine import Engine
from kvactors.core.errors import InvalidSampling
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule import scoring
from kvactors.core.schedule.logprobs import TokenLogprob
from kvactors.core.schedule.request import Request
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import PlainTokenizer, tiny_llama, tiny_model

WAIT = 60
GREEDY = Sampling(max_tokens=10, top_logprobs=5)


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    # No grid: mlx-lm's sums differ in their last bits, which a grid makes a step of.
    options = ModelOptions(kv_bits=None, attention="packed")
    return load_model(lambda: (tiny_model(), PlainTokenizer()), options)


def run(engine: Engine, *requests: Request) -> dict[str, Request]:
    # Not all begin at once: rows join and leave while others decode.
    arrivals = [(3 * place, request) for place, request in enumerate(requests)]
    return {name: end.request for name, end in run_engine(engine, arrivals).items()}


def log_softmax(row: Any) -> np.ndarray[Any, Any]:
    """In float64, by NumPy: [vocab]."""
    values = np.array(row, dtype=np.float64)
    own: np.ndarray[Any, Any] = values - np.logaddexp.reduce(values)
    return own


def expect(given: TokenLogprob, token: int, row: Any, top: int) -> None:
    """That `given` is what a row of logits says of a token."""
    own = log_softmax(row)
    assert given.token == token
    assert given.logprob == pytest.approx(own[token], abs=1e-4)
    assert [logprob for _, logprob in given.top] == pytest.approx(
        np.sort(own)[::-1][:top], abs=1e-4
    )
    assert [own[likely] for likely, _ in given.top] == pytest.approx(
        [logprob for _, logprob in given.top], abs=1e-4
    )


def prompt_logits(loaded: LoadedModel, prompt: list[int]) -> Any:
    """mlx-lm's logits [tokens, vocab] of a prompt in one go."""
    return loaded.model(mx.array([prompt]), cache=mlx_lm_caches(loaded))[0].astype(mx.float32)


def test_each_drawn_token_has_the_models_own_log_probability(
    loaded: LoadedModel, make_engine: MakeEngine
) -> None:
    prompt = prompt_of(40)
    tokens, logits = free_run(loaded, prompt, 10)

    request = run(make_engine(loaded), make_request("a", [], prompt, GREEDY))["a"]

    assert request.generated == tokens
    for given, token, row in zip(request.logprobs, tokens, logits, strict=True):
        expect(given, token, row, 5)


def test_no_filter_changes_what_is_told(loaded: LoadedModel, make_engine: MakeEngine) -> None:
    sampling = Sampling(
        max_tokens=8, temperature=3.0, top_k=3, repetition_penalty=1.5, seed=7, top_logprobs=20
    )
    prompt = prompt_of(20)

    request = run(make_engine(loaded), make_request("a", [], prompt, sampling))["a"]

    logits = prompt_logits(loaded, request.tokens)[len(prompt) - 1 :]
    for given, token, row in zip(request.logprobs, request.generated, logits, strict=False):
        expect(given, token, row, 20)


@pytest.mark.parametrize("length", [1, 2, 33, 700])
@pytest.mark.parametrize("answer", [True, False])
def test_a_prompt_is_scored_to_its_last_token(
    loaded: LoadedModel, make_engine: MakeEngine, length: int, answer: bool
) -> None:
    prompt = prompt_of(length)
    sampling = Sampling(max_tokens=2, top_logprobs=3, prompt_logprobs=True)

    request = run(make_engine(loaded), make_request("a", [], prompt, sampling, answer=answer))["a"]

    logits = prompt_logits(loaded, prompt)
    assert len(request.prompt_logprobs) == length - 1
    for given, token, row in zip(request.prompt_logprobs, prompt[1:], logits, strict=False):
        expect(given, token, row, 3)
    assert len(request.logprobs) == (2 if answer else 0)


def askers() -> list[Request]:
    """Turns that ask for more or less, and one that asks for nothing."""
    long, short, other, plain = prompts_of([300, 12, 65, 40])
    drawn = Sampling(max_tokens=9, temperature=1.0, seed=3, top_logprobs=2)
    scored = Sampling(max_tokens=4, top_logprobs=1, prompt_logprobs=True)
    return [
        make_request("long", [], long, GREEDY),
        make_request("scored", [], other, scored),
        make_request("short", [], short, drawn),
        make_request("plain", [], plain, Sampling(max_tokens=20)),
    ]


def told(request: Request) -> tuple[Any, ...]:
    return request.generated, request.logprobs, request.prompt_logprobs


def compare_alone_and_together(loaded: LoadedModel, make_engine: MakeEngine) -> None:
    alone: dict[str, Request] = {}
    for request in askers():
        alone |= run(make_engine(loaded), request)

    together = run(make_engine(loaded), *askers())

    for name, request in together.items():
        assert told(request) == told(alone[name]), name
    assert not together["plain"].logprobs
    assert together["short"].logprobs


@pytest.mark.parametrize("kv_bits", [4, None])
def test_who_shares_the_batch_changes_no_bit(
    load_grid: LoadGrid, make_engine: MakeEngine, kv_bits: int | None
) -> None:
    compare_alone_and_together(load_grid(kv_bits), make_engine)


@bug(scoring, "own_logprobs")
def a_row_is_told_of_its_neighbour(true: Callable[..., Any]) -> Callable[..., Any]:
    return lambda requests, logits: true(requests, mx.concatenate([logits[1:], logits[:1]]))


@bug(scoring, "score_prompts")
def a_prompt_is_scored_one_token_late(true: Callable[..., Any]) -> Callable[..., Any]:
    return lambda requests, logits: true(
        requests, mx.concatenate([logits[:, :1], logits[:, :-1]], axis=1)
    )


def test_a_neighbours_token_is_noticed(load_grid: LoadGrid, make_engine: MakeEngine) -> None:
    with seeded(a_row_is_told_of_its_neighbour), pytest.raises(AssertionError):
        compare_alone_and_together(load_grid(), make_engine)


def test_a_late_prompt_is_noticed(loaded: LoadedModel, make_engine: MakeEngine) -> None:
    with seeded(a_prompt_is_scored_one_token_late), pytest.raises(AssertionError):
        test_a_prompt_is_scored_to_its_last_token(loaded, make_engine, 33, answer=True)


def test_a_prompt_that_is_known_is_scored_from_its_beginning(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    engine = make_engine(loaded)
    known = run(engine, make_request("a", [], prompt_of(300), Sampling(max_tokens=5)))["a"].tokens
    sampling = Sampling(max_tokens=400, top_logprobs=2, prompt_logprobs=True)
    new = [7, 8, 9]

    scored = run(engine, make_request("a", known, new, sampling, turn=1))["a"]
    anew = run(make_engine(loaded), make_request("b", [], [*known, *new], sampling))["b"]

    assert told(scored) == told(anew)
    assert scored.kept == 0
    onward = make_request("a", scored.tokens, [3], Sampling(max_tokens=3), turn=2)
    assert run(engine, onward)["a"].kept == len(scored.tokens) - 1


@pytest.mark.slow
def test_a_turn_that_gives_way_is_told_the_same(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    sampling = Sampling(max_tokens=400, top_logprobs=2, prompt_logprobs=True)
    prompts = prompts_of([200, 210, 190])
    alone: dict[str, Request] = {}
    for number, prompt in enumerate(prompts):
        alone |= run(make_engine(loaded), make_request(f"{number}", [], prompt, sampling))
    request = make_request("?", [], prompts[0], sampling)
    request.form = loaded.form_of(request.prompt)

    least = make_engine(loaded).memory.least(request)
    engine = make_engine(loaded, budget=int(1.55 * least), clock=Ticks())
    together = run(engine, *(make_request(f"{n}", [], p, sampling) for n, p in enumerate(prompts)))

    assert engine.stats()["preemptions"]
    for name, request in together.items():
        assert told(request) == told(alone[name])


def test_a_choice_has_them_too(loaded: LoadedModel, make_engine: MakeEngine) -> None:
    prompt = prompt_of(30)
    request = make_request("a", [], prompt, Sampling(max_tokens=3, top_logprobs=1))
    request.choices = ((5, 0), (5, 6, 0))

    chosen = run(make_engine(loaded), request)["a"]

    total = sum(given.logprob or 0.0 for given in chosen.logprobs)
    assert total == pytest.approx(max(chosen.scores), abs=1e-5)
    assert [given.token for given in chosen.logprobs] == chosen.generated


def test_a_reply_and_its_pieces_carry_them(open_system: Callable[..., AgentSystem]) -> None:
    agent = open_system(tiny_llama(), store=False).spawn("a")
    sampling = Sampling(max_tokens=400, top_logprobs=2, prompt_logprobs=True)

    stream = agent.stream([5, 6, 7, 8], sampling=sampling)
    pieces = list(stream)
    reply = agent.ask([9, 9], sampling=sampling).get(timeout=WAIT)

    streamed = [given for piece in pieces for given in piece.logprobs]
    assert tuple(streamed) == stream.reply.logprobs
    assert all(
        tuple(given.token for given in piece.logprobs) == piece.token_ids for piece in pieces
    )
    assert tuple(given.token for given in reply.logprobs) == reply.token_ids
    assert len(reply.prompt_logprobs) == reply.usage.prompt_tokens
    assert reply.prompt_logprobs[0] == TokenLogprob(5, None)
    plain = agent.ask([1], sampling=Sampling(max_tokens=2)).get(timeout=WAIT)
    assert plain.logprobs == plain.prompt_logprobs == ()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"top_logprobs": 21}, "at most 20"),
        ({"top_logprobs": -1}, "at least 0"),
        ({"top_logprobs": True}, "an int"),
        ({"prompt_logprobs": True}, "needs top_logprobs"),
    ],
)
def test_what_cannot_be_told_is_refused(wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSampling, match=why):
        Sampling(**wrong)
