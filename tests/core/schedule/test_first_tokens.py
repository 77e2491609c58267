"""A short rest of a prompt and the first token behind it come of one forward."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from makers import LoadGrid, MakeEngine, prompts_of
from seeded import bug, seeded

from kvactors import Grammar, Sampling
from kvactors.core.engine.runner import PrefillBatch
from kvactors.core.schedule.events import Tokens
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.scheduler import LOGITS
from kvactors.core.testing.engines import make_request, run_engine

KNOWN = 70
RESTS = (2, 3, 9, 17, LOGITS)
DRAWN = Sampling(max_tokens=6, temperature=0.9, top_p=0.9, seed=3)
KINDS = {
    "greedy": Sampling(max_tokens=6),
    "drawn": DRAWN,
    "with a penalty": replace(DRAWN, repetition_penalty=1.3),
    "with log-probabilities": replace(DRAWN, top_logprobs=3),
    "in a form": replace(DRAWN, grammar=Grammar.regex("[a-f]{4}[0-9]{2}")),
    "of one token": Sampling(max_tokens=1),
}


class Slow:
    """A clock by which a chunk takes as long as it has tokens, and little else takes any time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1e-3
        return self.now


@contextmanager
def drawn_by_chunks(clock: Slow | None = None) -> Iterator[list[int]]:
    """How many tokens each chunk drew; it takes its time by this `clock`."""
    clock = clock or Slow()
    found: list[int] = []

    @bug(PrefillBatch, "run")
    def heard(true: Any) -> Any:
        def run(batch: PrefillBatch, chunks: Any, **options: Any) -> Any:
            decoded = true(batch, chunks, **options)
            clock.now += 4e-4 * sum(chunk.tokens for chunk in chunks)
            found.append(len(decoded))
            return decoded

        return run

    with seeded(heard):
        yield found


def turns(
    prompts: Sequence[list[int]], sampling: Sampling, known: int
) -> list[tuple[int, Request]]:
    return [
        (0, make_request(f"{n}", prompt[:known], prompt[known:], sampling, turn=1, serial=n))
        for n, prompt in enumerate(prompts)
    ]


def remember(engine: Any, prompts: Sequence[list[int]]) -> None:
    """Each agent has heard what its prompt begins with."""
    heard = [
        (0, make_request(f"{n}", [], prompt[:KNOWN], Sampling(), answer=False, serial=n))
        for n, prompt in enumerate(prompts)
    ]
    run_engine(engine, heard)


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_token_that_a_decode_step_draws(
    load_grid: LoadGrid, make_engine: MakeEngine, kind: str
) -> None:
    loaded, prompts = load_grid(), prompts_of([KNOWN + rest for rest in RESTS])
    with drawn_by_chunks() as never:
        whole = [
            run_engine(make_engine(loaded), [turn])[turn[1].agent_id].request
            for turn in turns(prompts, KINDS[kind], 0)
        ]
    hot = make_engine(loaded)
    remember(hot, prompts)

    with drawn_by_chunks() as drawn:
        found = run_engine(hot, turns(prompts, KINDS[kind], KNOWN))

    for one in whole:
        same = found[one.agent_id].request
        assert (same.generated, same.logprobs) == (one.generated, one.logprobs)
        assert same.kept == KNOWN
    assert sum(never) == 0
    # The last one has as many tokens as make a chunk of its own.
    assert sum(drawn) >= len(RESTS) - 1


def test_rows_of_several_lengths_draw_together(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded, prompts = load_grid(), prompts_of([KNOWN + rest for rest in RESTS[:4]])
    engine = make_engine(loaded)
    remember(engine, prompts)

    with drawn_by_chunks() as drawn:
        run_engine(engine, turns(prompts, DRAWN, KNOWN))

    assert max(drawn) > 1


def test_where_steps_must_keep_their_bits_no_chunk_draws(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    engine = make_engine(replace(loaded, policy=replace(loaded.policy, reproducible=True)))
    prompts = prompts_of([KNOWN + 5])
    remember(engine, prompts)

    with drawn_by_chunks() as drawn:
        run_engine(engine, turns(prompts, DRAWN, KNOWN))

    assert drawn
    assert sum(drawn) == 0


def test_a_chunk_behind_which_the_prompt_goes_on_draws_nothing(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    """Beside a row that is watched chunks are short."""
    clock = Slow()
    engine = make_engine(load_grid(), clock=clock)
    first, rest = prompts_of([40, 100])
    watched = make_request("w", [], first, Sampling(max_tokens=60))
    watched.stream = True
    alone = run_engine(make_engine(load_grid()), turns([rest], Sampling(max_tokens=3), 0))

    with drawn_by_chunks(clock) as drawn:
        later = [(3, turn) for _, turn in turns([rest], Sampling(max_tokens=3), 0)]
        found = run_engine(engine, [(0, watched), *later])

    assert len(drawn) > 3
    assert sum(drawn[:-1]) == 0
    assert found["0"].request.generated == alone["0"].request.generated


def test_it_is_told_before_the_step_behind_it_is_launched(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    request = make_request("a", [], prompts_of([20])[0], Sampling(max_tokens=3))
    request.stream = True
    engine.submit(request)

    told = [event for event in engine.step() if isinstance(event, Tokens)]

    assert [event.token_ids for event in told] == [tuple(request.generated)]
    assert not engine.memory.running.common[0].in_flight
    engine.step()
    assert engine.memory.running.common[0].in_flight


@pytest.mark.parametrize("answer", [False, True])
def test_a_turn_with_its_first_token_goes_on_beside_urgent_prompts_without_end(
    load_grid: LoadGrid, make_engine: MakeEngine, answer: bool
) -> None:
    engine = make_engine(load_grid())
    said = make_request("calm", [], list(range(1, 21)), Sampling(max_tokens=30))
    engine.submit(said)
    with drawn_by_chunks() as drawn:
        engine.step()
        assert (drawn, said.decoded) == ([1], 1)
        for n in range(90):
            if not engine.stats()["waiting"]:
                form = Sampling(max_tokens=1)
                one = make_request(f"{n}", [], [*range(20)], form, answer=answer, serial=n + 1)
                one.priority = 1
                engine.submit(one)
            engine.step()
    assert len(drawn) > 80
    assert said.decoded == 30


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("passing", [True, False])
def test_the_beginning_of_a_turn_that_ends_with_it_is_shared(
    load_grid: LoadGrid, make_engine: MakeEngine, together: bool, passing: bool
) -> None:
    engine, begin = make_engine(load_grid()), [1 + n % 100 for n in range(260)]
    requests = []
    for n in range(3):
        prompt = [*begin, *([5 + n] * 10)]
        request = make_request(f"{n}", [], prompt, Sampling(max_tokens=1), serial=n)
        request.shared, request.prompt_hash, request.tenant = len(begin), "same", ""
        request.passing = passing
        requests.append((0, request))

    with drawn_by_chunks() as drawn:
        for turns_of_it in [requests] if together else [[one] for one in requests]:
            run_engine(engine, turns_of_it)

    assert sum(drawn) >= 2
    assert engine.stats()["shared_tokens"] == 2 * len(begin)


def test_a_beginning_is_shared_before_a_longer_prompt_has_ended(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine, begin = make_engine(load_grid()), [1 + n % 100 for n in range(300)]
    requests = []
    for n, others in enumerate((900, 10)):
        prompt = [*begin, *([5 + n] * others)]
        request = make_request(f"{n}", [], prompt, Sampling(max_tokens=1), serial=n)
        request.shared, request.prompt_hash, request.tenant = len(begin), "same", ""
        requests.append((0, request))

    run_engine(engine, requests)

    assert engine.stats()["shared_tokens"] == len(begin)
