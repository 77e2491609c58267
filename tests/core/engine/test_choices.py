"""An answer that is one of some given texts: scored, drawn, and remembered like any other."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from oracle import mlx_lm_caches

from kvactors.actors import AgentSystem, Sampling
from kvactors.core.engine.engine import Engine
from kvactors.core.errors import InvalidSampling
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import draw_choice
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.models import Faulty, PlainTokenizer, tiny_llama, tiny_model

WAIT = 60
PROMPT = [9, 3, 77, 21, 40] * 9
# One begins with another; the end of turn (0) tells them apart.
CHOICES = ((5, 0), (5, 6, 0), (7, 8, 9, 0))


def choosing(name: str, prompt: list[int] = PROMPT, **sampling: Any) -> Request:
    request = make_request(name, [], prompt, Sampling(max_tokens=4, **sampling))
    request.choices = CHOICES
    return request


def run(engine: Engine, *requests: Request, late: tuple[Request, ...] = ()) -> dict[str, Request]:
    arrivals = [*((0, request) for request in requests), *((4, request) for request in late)]
    return {name: end.request for name, end in run_engine(engine, arrivals).items()}


def oracle_scores(loaded: LoadedModel, prompt: list[int]) -> list[float]:
    """Log-probabilities of each choice, token after token through mlx-lm's own caches."""
    scores = []
    for choice in CHOICES:
        caches, total = mlx_lm_caches(loaded), 0.0
        mx.eval(loaded.model(mx.array([prompt[:-1]]), cache=caches))
        fed = prompt[-1]
        for token in choice:
            row = loaded.model(mx.array([[fed]]), cache=caches)[0, -1].astype(mx.float32)
            total += float((row - mx.logsumexp(row))[token])
            fed = token
        scores.append(total)
    return scores


@pytest.mark.parametrize("kv_bits", [4, 8, None])
def test_scores_are_the_log_probabilities_of_whole_choices(
    make_engine: Callable[..., Engine], kv_bits: int | None
) -> None:
    # No grid: mlx-lm's sums differ in their last bits, which a grid makes a step of.
    options = ModelOptions(kv_bits=kv_bits, attention="packed")
    loaded = load_model(lambda: (tiny_model(), PlainTokenizer()), options)

    request = run(make_engine(loaded), choosing("a"))["a"]

    expected = oracle_scores(loaded, PROMPT)
    assert request.scores == pytest.approx(expected, abs=1e-5)
    best = max(range(3), key=expected.__getitem__)
    assert tuple(request.generated) == CHOICES[best]


def test_choosing_and_its_neighbours_do_not_change_each_other(
    load_grid: Callable[..., LoadedModel], make_engine: Callable[..., Engine]
) -> None:
    loaded = load_grid()
    plain = make_request("plain", [], [4, 4, 8] * 20, Sampling(max_tokens=20))
    alone = {
        **run(make_engine(loaded), choosing("a")),
        **run(make_engine(loaded), choosing("b", [1, 2, 3])),
        **run(make_engine(loaded), replace(plain)),
    }
    plain = make_request("plain", [], [4, 4, 8] * 20, Sampling(max_tokens=20))

    together = run(make_engine(loaded), plain, choosing("a"), late=(choosing("b", [1, 2, 3]),))

    for name, request in together.items():
        assert request.scores == alone[name].scores
        assert request.generated == alone[name].generated


def test_what_is_no_number_in_a_neighbours_choice_is_in_no_other_score(
    make_engine: Callable[..., Engine],
) -> None:
    def build() -> tuple[Any, PlainTokenizer]:
        model = tiny_model()
        model.model.embed_tokens.weight[70] = mx.nan
        return model, PlainTokenizer()

    loaded = load_model(build, ModelOptions(attention="packed"))

    def scores(beside: int) -> tuple[float, ...]:
        other = replace(choosing("b", [1, 2, 3]), choices=((beside,) * 8, (9,) * 8))
        return run(make_engine(loaded), other, choosing("a"))["a"].scores

    assert scores(70) == scores(71)


def test_what_was_chosen_is_remembered_as_if_it_had_been_said(
    load_grid: Callable[..., LoadedModel], make_engine: Callable[..., Engine]
) -> None:
    loaded = load_grid()
    engine = make_engine(loaded)
    chosen = run(engine, choosing("a"))["a"]
    known = chosen.tokens

    onward = make_request("a", known, [11, 12], Sampling(max_tokens=8), turn=1)
    after = run(engine, onward)["a"]
    told = run(make_engine(loaded), make_request("b", [], [*known, 11, 12], onward.sampling))["b"]

    assert after.generated == told.generated
    assert after.kept == len(known) - 1


def test_every_choice_is_drawn_as_often_as_its_score_says() -> None:
    scores, sampling = [-1.0, -1.5, -3.0], Sampling(temperature=2.0)
    weights = [math.exp(score / 2.0) for score in scores]

    drawn = Counter(draw_choice(scores, sampling, key) for key in range(2000))

    for index, weight in enumerate(weights):
        assert drawn[index] / 2000 == pytest.approx(weight / sum(weights), abs=0.04)


def test_an_agent_answers_with_one_of_the_choices(
    open_system: Callable[..., AgentSystem],
) -> None:
    agent = open_system(tiny_llama(), store=False).spawn("a")
    choices = ("no", "none", "yes")

    replies = [
        agent.ask("Well?", sampling=Sampling(choices=choices, temperature=50.0, seed=seed)).get(
            timeout=WAIT
        )
        for seed in range(24)
    ]

    assert {reply.text for reply in replies} == set(choices)
    assert all(reply.finish_reason == "stop" for reply in replies)
    assert all(list(reply.scores) == list(choices) for reply in replies)
    streamed = agent.stream("Well?", sampling=Sampling(choices=choices))
    assert "".join(piece.text for piece in streamed) == streamed.reply.text
    assert agent.ask("And?", sampling=Sampling(max_tokens=3)).get(timeout=WAIT).scores is None


def test_a_step_that_fails_while_choices_are_scored_fails_its_own_turn_alone() -> None:
    model = Faulty(tiny_model(seed=2))

    def faulty() -> tuple[Any, PlainTokenizer]:
        return model, PlainTokenizer()

    with AgentSystem(faulty, store=False) as system:
        good, bad = system.spawn("good"), system.spawn("bad")
        model.arm(poison=6)

        failing = bad.ask([1, 2, 3], sampling=Sampling(choices=("\x06\x07",)))
        fine = good.ask([1, 2, 3], sampling=Sampling(choices=("\x05\x04", "\x07")))

        assert fine.get(timeout=WAIT).text in ("\x05\x04", "\x07")
        with pytest.raises(Exception, match="poisoned"):
            failing.get(timeout=WAIT)


@pytest.mark.parametrize(
    "wrong", [("a", "a"), ("",), (1,), 3, tuple(map(str, range(300))), {"a", "b"}, frozenset("ab")]
)
def test_choices_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidSampling):
        Sampling(choices=wrong)
