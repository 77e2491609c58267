"""Bodies that are right but for one place: each is answered, or refused, and never the server's
fault."""

import copy
import json
import os
from collections.abc import Iterator
from random import Random
from typing import Any

import httpx
import pytest

from kvactors.actors.frontends.server.web.serve import Server

WAIT = 60
TIMES = 3000 if os.environ.get("KVACTORS_FULL") else 40
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 2**70, 1.5, "", "x", "\0", "\ud800", "auto", [], [[]], [None], {}, {"x": 1},
    {"type": []}, {"type": "text"}, [{"type": {}}], ["x", 5], {"name": 5}, [{}],
)  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
FUNCTION = {"name": "f", "description": "does", "parameters": SCHEMA, "strict": False}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "be"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "h"},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "stream_options": {"include_usage": True},
        "stop": ["x"], "n": 1, "seed": 1, "logprobs": True, "top_logprobs": 1, "max_tokens": 100,
        "prompt_cache_key": "k", "metadata": {"a": "b"}, "user": "u",
    },
    "/v1/messages": {
        "model": "m", "max_tokens": 12, "system": [{"type": "text", "text": "be"}],
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "h", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t1",
                 "content": [{"type": "text", "text": "1"}]},
                {"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
        "stop_sequences": ["x"], "metadata": {"user_id": "u"}, "thinking": {"type": "disabled"},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
    "/v1/responses": {
        "instructions": "be", "max_output_tokens": 12, "store": True, "include": ["x"],
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "h"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
        ],
        "tools": [
            {"type": "function", **FUNCTION}, {"type": "web_search"},
            {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto",
                        "tools": [{"type": "function", "name": "f"}]},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
        "reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "top_logprobs": 1,
    },
    "/v1/conversations": {
        "items": [{"type": "message", "role": "user", "content": "hi", "id": "i"}],
        "metadata": {"a": "b"},
    },
    "/v1/completions": {
        "prompt": ["a", [1, 2]], "max_tokens": 1, "logprobs": 1, "echo": True, "n": 1, "stop": "x",
        "stream_options": {"include_usage": True},
    },
    "/v1/messages/count_tokens": {
        "model": "m", "messages": [{"role": "user", "content": "hi"}],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
    },
}  # fmt: skip


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All paths into a body."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    for key, part in inner:
        yield (*at, key)
        if isinstance(part, dict | list):
            yield from places(part, (*at, key))


def mutated(body: dict[str, Any], random: Random) -> dict[str, Any]:
    """A body in which something odd stands somewhere, or something is left out."""
    body = copy.deepcopy(body)
    *before, last = random.choice(list(places(body)))
    within: Any = body
    for key in before:
        within = within[key]
    if random.random() < 0.1:
        del within[last]
    else:
        within[last] = copy.deepcopy(random.choice(ODD))
    return body


@pytest.mark.parametrize("path", BODIES)
def test_a_body_without_an_odd_place_is_answered(server: Server, path: str) -> None:
    answer = httpx.post(f"{server.url}{path}", json=BODIES[path], timeout=WAIT)

    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", BODIES)
def test_a_body_with_one_odd_place_is_answered_or_refused(server: Server, path: str) -> None:
    random = Random(path)
    wrong = []
    with httpx.Client(timeout=WAIT) as client:
        for stream in (False, True) * (TIMES // 2):
            content = json.dumps(mutated(BODIES[path], random) | {"stream": stream})
            try:
                found: Any = client.post(f"{server.url}{path}", content=content).status_code
            except httpx.HTTPError as error:
                found = repr(error)
            if found not in (200, 400, 404):
                wrong.append((found, content))

    assert wrong == []
