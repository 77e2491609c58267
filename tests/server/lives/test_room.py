"""Limits of an answer that are longer than the model's context: clients set them without a look."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from chats import WAIT

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.answering.asked import LEAST_ROOM, shortened
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import FaultyModel
from kvactors.core.schedule.sampling import Sampling

CONTEXT = 600
LIMITS = {
    "chat/completions": "max_tokens",
    "messages": "max_tokens",
    "responses": "max_output_tokens",
    "completions": "max_tokens",
}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with (
        AgentSystem(FaultyModel(), store=False, context=CONTEXT) as system,
        serve(system, port=0, any_model=True, grace=1) as server,
    ):
        yield server


def post(server: Server, path: str, text: str, limit: int) -> httpx.Response:
    said: Any = [{"role": "user", "content": text}]
    body = {"model": "any", LIMITS[path]: limit, "temperature": 0}
    named = {"responses": {"input": said}, "completions": {"prompt": text}}
    body |= named.get(path, {"messages": said})
    return httpx.post(f"{server.url}/v1/{path}", json=body, timeout=WAIT)


def tokens(answer: httpx.Response) -> tuple[int, int]:
    """Those of the prompt, and of the answer."""
    usage = answer.json()["usage"]
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], usage["completion_tokens"]
    cached = usage.get("cache_read_input_tokens", 0)
    return usage["input_tokens"] + cached, usage["output_tokens"]


@pytest.mark.parametrize("path", LIMITS)
def test_a_limit_beyond_the_context_is_what_the_context_leaves(server: Server, path: str) -> None:
    answer = post(server, path, f"hello, {path}", 32_000)

    assert answer.status_code == 200, answer.text
    prompt, answered = tokens(answer)
    assert 0 < answered <= CONTEXT - prompt


@pytest.mark.parametrize(
    ("left", "tokens"), [(500, 500), (256, 256), (255, 256), (-9, 256), (40_000, 32_000)]
)
def test_a_limit_is_all_that_is_left_and_not_hardly_anything(left: int, tokens: int) -> None:
    asked = Sampling(max_tokens=32_000, temperature=0.5)

    assert shortened(asked, left) == replace(asked, max_tokens=tokens)


@pytest.mark.parametrize("path", LIMITS)
def test_where_hardly_anything_is_left_the_client_is_told_to_compact(
    server: Server, path: str
) -> None:
    answer = post(server, path, "word " * 70, 32_000)

    assert answer.status_code == 400
    assert f"new + max_tokens {LEAST_ROOM} = " in answer.text
    assert f"exceed the context of {CONTEXT} tokens" in answer.text


@pytest.mark.parametrize("words", [70, 4_000])
def test_how_much_must_go_is_told_as_clients_of_messages_look_for_it(
    server: Server, words: int
) -> None:
    answer = post(server, "messages", "word " * words, 32_000).json()

    found = re.match(
        r"prompt is too long: (\d+) tokens > (\d+) maximum", answer["error"]["message"]
    )
    assert found is not None
    prompt, most = map(int, found.groups())
    assert prompt >= 5 * words > most
    assert most in (CONTEXT, CONTEXT - LEAST_ROOM)


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_many_short_messages_leave_what_they_leave(server: Server, path: str) -> None:
    roles = "user", "assistant"
    said = [{"role": roles[n % 2], "content": "a"} for n in range(41)]
    body = {"model": "any", "max_tokens": 450, "temperature": 0, "messages": said}

    answer = httpx.post(f"{server.url}/v1/{path}", json=body, timeout=WAIT)

    assert tokens(answer)[1] > LEAST_ROOM


@pytest.mark.parametrize("path", LIMITS)
def test_a_limit_that_fits_stands(server: Server, path: str) -> None:
    answer = post(server, path, "word " * 50, 20)

    assert tokens(answer)[1] == 20
