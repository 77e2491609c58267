"""Bodies that are no JSON, or too much of it: refused with what is wrong, and nobody waits."""

import asyncio
import json
import threading
from typing import Any

import httpx
import pytest
from fastapi import Request
from pydantic import model_validator

from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.frontends.server.wire.asking import BESIDE, read_body
from kvactors.actors.frontends.server.wire.asking import beside as made_beside
from kvactors.actors.frontends.server.wire.chat_body import ChatBody
from kvactors.actors.frontends.server.wire.errors import Failure
from kvactors.actors.frontends.server.wire.reading import (
    MOST_LISTED,
    MOST_LISTS,
    MOST_VALUES,
    Body,
    record_of,
)

WAIT = 60
# A right body of each interface, up to where something follows.
BEGINS = {
    "chat/completions": '{"max_tokens":2,"messages":[{"role":"user","content":"hi"}],',
    "messages": '{"max_tokens":2,"messages":[{"role":"user","content":"hi"}],',
    "responses": '{"max_output_tokens":2,"input":"hi",',
    "completions": '{"max_tokens":2,"prompt":"hi",',
}


def post(server: Server, path: str, content: bytes) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/{path}", content=content, timeout=WAIT)


def check_refused(answer: httpx.Response, path: str, status: int = 400) -> str:
    """In the shape of its interface; what it says."""
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert told.get("type") == ("error" if path == "messages" else None)
    return str(told["error"]["message"])


@pytest.mark.parametrize("path", BEGINS)
@pytest.mark.parametrize(
    "tail",
    [b'"user":"x\xed\xa0\xbdy"}', b'"user":"\xff"}'],
)
def test_bytes_that_are_no_text_are_refused(server: Server, path: str, tail: bytes) -> None:
    said = check_refused(post(server, path, BEGINS[path].encode() + tail), path)

    assert "utf-8" in said


@pytest.mark.parametrize("path", BEGINS)
def test_a_body_in_another_encoding_is_refused(server: Server, path: str) -> None:
    content = (BEGINS[path] + '"user":"\\ud83d"}').encode("utf-16")

    check_refused(post(server, path, content), path)


@pytest.mark.parametrize("path", BEGINS)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_what_is_no_number_is_refused_by_its_name(server: Server, path: str, number: str) -> None:
    content = f'{BEGINS[path]}"metadata":{{"a":[{number}]}}}}'.encode()

    assert number in check_refused(post(server, path, content), path)


@pytest.mark.parametrize(
    ("path", "field"),
    [("chat/completions", "stream"), ("messages", "stream"), ("responses", "stream"),
     ("completions", "stream"), ("completions", "echo")],
)  # fmt: skip
def test_null_is_as_if_the_field_were_not_there(server: Server, path: str, field: str) -> None:
    answer = post(server, path, f'{BEGINS[path]}"{field}":null}}'.encode())

    assert answer.status_code == 200, answer.text


def lists_of(number: int, field: str) -> bytes:
    """A body with so many lists in a field."""
    return b'{"%s":[' % field.encode() + b"[]," * number + b"[]]}"


@pytest.mark.parametrize("path", BEGINS)
@pytest.mark.parametrize("field", ["messages", "unknown", "stop", "input"])
def test_more_lists_than_anybody_needs_are_refused_by_their_number(
    server: Server, path: str, field: str
) -> None:
    said = check_refused(post(server, path, lists_of(1_300_000, field)), path, 413)

    assert str(MOST_VALUES) in said or str(MOST_LISTS) in said


def test_more_messages_than_anybody_has_are_refused_by_their_number(server: Server) -> None:
    content = json.dumps({"messages": [{"role": "user", "content": "x"}] * (MOST_LISTED + 1)})

    said = check_refused(post(server, "chat/completions", content.encode()), "chat/completions")
    assert said.startswith("messages:")
    assert str(MOST_LISTED) in said


@pytest.mark.parametrize(
    ("field", "status", "says"),
    [
        (lists_of(MOST_LISTS, "messages"), 413, str(MOST_LISTS)),
        (b'{"messages":' + b"[" * 70 + b"]" * 70 + b"}", 400, "nested"),
        (b'{"prompt":"x","temperature":NaN}', 400, "NaN"),
        (b'{"prompt":"\xff"}', 400, "utf-8"),
    ],
)
def test_what_an_agent_is_asked_has_the_same_bounds(
    server: Server, field: bytes, status: int, says: str
) -> None:
    headers = {"content-type": "application/json"}
    url = f"{server.url}/agents/nobody/turns"

    answer = httpx.post(url, content=field, headers=headers, timeout=WAIT)

    assert says in check_refused(answer, "", status)


def test_many_wrong_messages_are_one_error() -> None:
    with pytest.raises(Failure, match=r"messages\.0: ") as failed:
        record_of(lists_of(MOST_LISTED - 2, "messages"), ChatBody)

    assert failed.value.__cause__ is not None
    assert len(failed.value.__cause__.errors()) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("sign", [",", "[", "{", ":", '\\"', "\\\\", '\\"[,'])
def test_signs_in_texts_count_for_nothing(sign: str) -> None:
    text = (sign * (MOST_VALUES + 1)).encode()

    body = record_of(b'{"messages":[{"role":"user","content":"' + text + b'"}]}', ChatBody)

    assert body.messages[0]["content"] == json.loads(b'"' + text + b'"')


def test_texts_without_end_or_anything_between_are_refused() -> None:
    for content in (b'"' * (8 * MOST_VALUES), b"[" * 200_000, b'{"a":"' + b"[" * 200_000):
        with pytest.raises(Failure) as failed:
            record_of(content, ChatBody)
        assert failed.value.status in (400, 413)


def test_a_long_conversation_is_read_as_it_is() -> None:
    said = [
        {"role": ("user", "assistant")[i % 2], "content": f'{i}: [{{"a": 1}}], ' + "x, " * 270}
        for i in range(5000)
    ]
    content = json.dumps({"messages": said}).encode()
    assert len(content) > 4 << 20

    assert record_of(content, ChatBody).messages == said


def test_a_thousand_prompts_of_a_thousand_ids_are_read() -> None:
    prompts = [[7] * 1000] * 1000

    body = record_of(json.dumps({"prompt": prompts}).encode(), Body)

    assert body.model_extra == {"prompt": prompts}


class Seen(Body):
    """Where it was read."""

    @model_validator(mode="before")
    @classmethod
    def _note(cls, content: Any) -> Any:
        return {"thread": threading.get_ident(), **content}


@pytest.mark.parametrize(("size", "beside"), [(10, False), (BESIDE, True)])
def test_only_a_large_body_is_read_beside_the_event_loop(size: int, *, beside: bool) -> None:
    content = json.dumps({"text": "x" * size}).encode()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": content}

    seen = asyncio.run(read_body(Request({"type": "http"}, receive), Seen))

    assert ((seen.model_extra or {})["thread"] != threading.get_ident()) is beside
    thread = asyncio.run(made_beside(Request({"type": "http"}, receive), threading.get_ident))
    assert (thread != threading.get_ident()) is beside
