"""Text completions through the openai package, against mlx-lm and NumPy."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from inside import system_of
from likelihoods import check_place, logprobs_of, tokens_of

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.frontends.server.wire.together import AT_ONCE
from kvactors.actors.testing import FaultyModel

TEXT = "My cat is called Tom. My dog is called"
TOP = 5
WAIT = 60


def test_a_text_is_gone_on_with(texts: openai.OpenAI) -> None:
    whole = texts.completions.create(model="default", prompt=TEXT, max_tokens=8, temperature=0)
    echoed = texts.completions.create(
        model="default", prompt=TEXT, max_tokens=8, temperature=0, echo=True
    )

    assert whole.choices[0].text
    assert whole.choices[0].logprobs is None
    assert echoed.choices[0].text == TEXT + whole.choices[0].text
    assert whole.usage is not None
    assert whole.usage.completion_tokens <= 8


@pytest.mark.parametrize("most", [0, 1])
def test_every_token_of_a_prompt_is_scored(exact: Server, texts: openai.OpenAI, most: int) -> None:
    tokens = tokens_of(exact, TEXT)
    expected = logprobs_of(tokens)

    answer = texts.completions.create(
        model="default", prompt=tokens, max_tokens=most, echo=True, logprobs=TOP, temperature=0
    )

    choice = answer.choices[0]
    told = choice.logprobs
    assert told is not None
    assert told.token_logprobs is not None
    assert told.top_logprobs is not None
    assert told.tokens is not None
    assert len(told.token_logprobs) == len(told.top_logprobs) == len(tokens) + most
    assert told.token_logprobs[0] is None
    assert told.top_logprobs[0] is None
    for place, token in enumerate(tokens[1:], 1):
        tops = sorted(told.top_logprobs[place].values(), reverse=True)
        check_place(expected[place - 1], token, told.token_logprobs[place], tops)
    if most:
        likeliest = expected[-1].max()
        assert told.token_logprobs[-1] == pytest.approx(likeliest, abs=1e-4)
    assert "".join(told.tokens) == choice.text
    assert told.text_offset is not None
    assert [choice.text[at:][:1] for at in told.text_offset] == [t[:1] for t in told.tokens]


def test_what_lm_eval_asks_tells_the_likelihood_of_continuations(
    exact: Server, texts: openai.OpenAI
) -> None:
    """As its local-completions does: ids of context and continuation, the sum from the end of the
    context to the last but one, and whether each token was the likeliest."""
    context = tokens_of(exact, "The sky is blue. The grass is")
    endings = [tokens_of(exact, " green.")[-2:], tokens_of(exact, " a very long word")]
    prompts = [[*context, *ending] for ending in endings]

    answer = texts.completions.create(
        model="default", prompt=prompts, max_tokens=1, echo=True, logprobs=1, temperature=0, seed=1
    )

    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice, prompt in zip(answer.choices, prompts, strict=True):
        own, begin = logprobs_of(prompt), len(context)
        expected = [own[place - 1][prompt[place]] for place in range(begin, len(prompt))]
        best = [own[place - 1].max() for place in range(begin, len(prompt))]
        told: Any = choice.logprobs
        scores, tops = told.token_logprobs[begin:-1], told.top_logprobs[begin:-1]
        assert sum(scores) == pytest.approx(sum(expected), abs=1e-3)
        greedy = all(score == max(top.values()) for score, top in zip(scores, tops, strict=True))
        assert greedy == (expected == best)


def test_texts_and_ids_and_lists_of_them_say_the_same(exact: Server, texts: openai.OpenAI) -> None:
    ids = tokens_of(exact, TEXT)
    forms: list[Any] = [TEXT, ids, [TEXT, "Once"], [ids, tokens_of(exact, "Once")]]

    answers = [
        texts.completions.create(model="default", prompt=form, max_tokens=4, temperature=0)
        for form in forms
    ]

    assert len({answer.choices[0].text for answer in answers}) == 1
    assert answers[2].choices[1].text == answers[3].choices[1].text
    assert [len(answer.choices) for answer in answers] == [1, 1, 2, 2]


def test_a_seed_draws_the_same_text_again(texts: openai.OpenAI) -> None:
    said = [
        texts.completions.create(
            model="default", prompt=TEXT, max_tokens=12, temperature=3.0, seed=seed
        )
        for seed in (7, 7, 8)
    ]

    one, again, other = (answer.choices[0].text for answer in said)
    assert one == again != other


def test_several_of_each_prompt_come_in_order(texts: openai.OpenAI) -> None:
    prompts = ["Once upon a time", "The"]

    answer = texts.completions.create(
        model="default", prompt=prompts, n=3, max_tokens=6, temperature=2.0, echo=True
    )

    assert [choice.index for choice in answer.choices] == list(range(6))
    assert all(c.text.startswith(prompts[c.index // 3]) for c in answer.choices)
    assert len({choice.text for choice in answer.choices[:3]}) > 1


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """Says the same to the bit, whatever is computed beside it: a prompt's scores are."""
    folder = tmp_path_factory.mktemp("repeated")
    with (
        AgentSystem(store=folder, kv_bits=None, reproducible=True) as system,
        serve(system, index=folder / "clients.db", port=0) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize("echo", [False, True])
def test_a_stream_adds_up_to_the_whole(repeated: openai.OpenAI, echo: bool) -> None:
    asked: dict[str, Any] = {
        "model": "default",
        "prompt": TEXT,
        "max_tokens": 10,
        "temperature": 0,
        "logprobs": 2,
        "echo": echo,
    }
    whole = repeated.completions.create(**asked)

    chunks = list(
        repeated.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )

    parts = [chunk.choices[0] for chunk in chunks if chunk.choices]
    told = [part.logprobs for part in parts if part.logprobs]
    assert "".join(part.text for part in parts) == whole.choices[0].text
    assert parts[-1].finish_reason == whole.choices[0].finish_reason
    expected: Any = whole.choices[0].logprobs
    assert [one for part in told for one in part.tokens or ()] == expected.tokens
    assert [one for part in told for one in part.token_logprobs or ()] == expected.token_logprobs
    assert [one for part in told for one in part.text_offset or ()] == expected.text_offset
    assert chunks[-1].usage == whole.usage


def test_a_stop_string_ends_a_text_and_what_is_told_of_it(texts: openai.OpenAI) -> None:
    asked: dict[str, Any] = {"model": "default", "prompt": TEXT, "max_tokens": 12, "logprobs": 0}
    asked |= {"temperature": 3.0, "seed": 4}
    whole = texts.completions.create(**asked).choices[0].text
    stop = whole[12:14]

    choice = texts.completions.create(**asked, stop=stop).choices[0]

    assert choice.text == whole[: whole.find(stop)]
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None
    assert "".join(choice.logprobs.tokens or ()).startswith(choice.text)
    assert all(at < len(choice.text) for at in choice.logprobs.text_offset or ())


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"prompt": "a", "suffix": "b"}, "suffix"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [["a"]]}, "prompt.0"),
        ({"prompt": ["a", 1]}, "prompt.1"),
        ({"prompt": "a", "logprobs": 21}, "logprobs"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
        ({"prompt": "a", "n": 5000}, "n"),
        ({"prompt": "a", "seed": 10**4000}, "seed"),
        ({}, "prompt"),
    ],
)
def test_a_bad_request_names_the_field(exact: Server, wrong: dict[str, Any], field: str) -> None:
    answer = httpx.post(f"{exact.url}/v1/completions", json=wrong, timeout=WAIT)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize("prompt", ["", [10**9], [5] * 200_000])
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_cannot_be_is_a_bad_request(
    texts: openai.OpenAI, prompt: Any, stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError):
        texts.completions.create(model="default", prompt=prompt, stream=stream)


def test_nothing_stays_of_a_text(exact: Server, texts: openai.OpenAI, folder: Path) -> None:
    system = system_of(exact)
    before = [agent.agent_id for agent in system.agents()]
    files = sorted(folder.rglob("*"))

    for most, echo in ((2, False), (2, True), (0, True)):
        texts.completions.create(
            model="default", prompt=TEXT * 4, max_tokens=most, echo=echo, logprobs=1
        )

    assert [agent.agent_id for agent in system.agents()] == before
    assert sorted(folder.rglob("*")) == files
    assert not system.stats()["hot_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_leaves_nothing_running(stream: bool) -> None:
    model = FaultyModel()
    asked = {"prompt": "hello", "max_tokens": 900, "stream": stream}

    async def go(url: str, system: AgentSystem) -> None:
        gate = model.hold()
        async with httpx.AsyncClient(timeout=WAIT) as client:
            waiting = asyncio.create_task(client.post(f"{url}/v1/completions", json=asked))
            await asyncio.to_thread(model.reached.wait, WAIT)
            assert system.agents()
            waiting.cancel()
        gate.set()
        while system.agents():
            await asyncio.sleep(0.01)

    with AgentSystem(model, store=False) as system, serve(system, port=0) as server:
        asyncio.run(asyncio.wait_for(go(server.url, system), WAIT))
        assert system.stats()["generated_tokens"] < 900


@pytest.mark.parametrize("most", [900, 0])
@pytest.mark.parametrize("stream", [False, True])
def test_half_a_text_that_somebody_else_cancelled_is_told_as_an_error(
    stream: bool, most: int
) -> None:
    model, scored = FaultyModel(), {} if most else {"echo": True, "logprobs": 1}
    asked = {"prompt": "hello " * 400, "max_tokens": most, "stream": stream, **scored}
    with (
        AgentSystem(model, store=False, context=4096) as system,
        serve(system, port=0) as server,
        ThreadPoolExecutor() as beside,
    ):
        gate = model.hold()
        url = f"{server.url}/v1/completions"
        answer = beside.submit(httpx.post, url, json=asked, timeout=WAIT)
        assert model.reached.wait(WAIT)
        (agent,) = [system.find(state.agent_id) for state in system.agents()]
        assert agent is not None
        agent.cancel()
        gate.set()
        told = answer.result().text

    assert "the turn was cancelled" in told
    assert '"stop"' not in told


def test_a_request_of_more_texts_than_may_be_open_is_answered_whole() -> None:
    asked = {"prompt": ["hello"] * (3 * AT_ONCE), "max_tokens": 1}

    with (
        AgentSystem(FaultyModel(), store=False) as system,
        serve(system, port=0, most=AT_ONCE) as server,
    ):
        answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=WAIT)

    assert answer.status_code == 200, answer.text
    assert len(answer.json()["choices"]) == 3 * AT_ONCE


def test_a_text_that_fails_ends_the_others_of_its_request() -> None:
    asked = {"prompt": [[1, 2, 3], [4, 5, 6], [10**9]], "max_tokens": 900}

    with AgentSystem(FaultyModel(), store=False) as system, serve(system, port=0) as server:
        answer = httpx.post(f"{server.url}/v1/completions", json=asked, timeout=WAIT)
        assert not system.agents()
        assert system.stats()["generated_tokens"] < 900

    assert answer.status_code == 400
    assert "1000000000" in answer.json()["error"]["message"]
