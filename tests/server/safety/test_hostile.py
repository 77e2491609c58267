"""What nobody should send, and somebody does: each gets an answer of its own, and harms nobody."""

import http.client
import json
from typing import Any

import httpx
import pytest
from inside import system_of
from puppets import puppet_server, thinking

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import FaultyModel, PuppetModel

WAIT = 60


def asked(*texts: str, **options: Any) -> dict[str, Any]:
    said = [{"role": "user", "content": text} for text in texts]
    return {"messages": said, "max_tokens": 8, "temperature": 0} | options


def post(server: Server, body: Any, path: str = "chat/completions", **headers: str) -> Any:
    content = json.dumps(body)
    return httpx.post(f"{server.url}/v1/{path}", content=content, headers=headers, timeout=WAIT)


def test_names_of_fields_end_no_header(server: Server) -> None:
    fields = {"evil\r\nX-Injected: yes\r\n": 1, "long" * 50_000: 1}

    answer = post(server, asked("hello") | fields)

    assert answer.status_code == 200
    assert "x-injected" not in answer.headers
    assert "evil" in answer.headers["x-kvactors-ignored"]
    assert len(answer.headers["x-kvactors-ignored"]) < 2000


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_halves_of_characters_are_answered(server: Server, path: str) -> None:
    body = {"model": "any", "max_output_tokens": 8, "input": "half \ud83d of it"}
    if path != "responses":
        body = asked("half \ud83d of it", model="any")

    answer = post(server, body | {"metadata": {"x": "\udc00"}}, path)

    assert answer.status_code == 200, answer.text


def test_whole_characters_as_escapes_stay(server: Server) -> None:
    new = post(server, asked("a face \U0001f600")).headers["x-kvactors-agent"]
    sent = json.dumps(asked("a face \U0001f600"), ensure_ascii=False).encode()
    again = httpx.post(f"{server.url}/v1/chat/completions", content=sent, timeout=WAIT)

    assert "again" in again.headers["x-kvactors-reused"]
    assert new != again.headers["x-kvactors-agent"]


@pytest.mark.parametrize("text", ["\0", "\0date\0", "\u2028\u2029", "\r\n\r\ndata: x\r\n\r\n"])
def test_odd_texts_are_answered(server: Server, text: str) -> None:
    for stream in (False, True):
        system = [{"role": "system", "content": text}]
        body = asked(text, stream=stream)
        body["messages"] = [*system, *body["messages"]]
        answer = post(server, body)

        assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses", "completions"])
def test_what_some_take_for_the_end_of_a_line_ends_none_of_a_stream(path: str) -> None:
    said = "one\u2028two\u2029three\x85four"
    body = asked("hello", stream=True, model="any", input="hello", prompt="hello", max_tokens=60)
    if path == "responses":
        body["max_output_tokens"] = body.pop("max_tokens")
    with puppet_server(PuppetModel(lambda _heard: said, tokenizer=thinking)) as server:
        answer = post(server, body, path)

    assert answer.status_code == 200, answer.text
    told = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    whole = "".join(json.dumps(json.loads(line)) for line in told)
    assert all(sign in whole for sign in ("\\u2028", "\\u2029", "\\u0085"))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/agents"])
def test_another_method_is_the_clients_fault(server: Server, path: str) -> None:
    answer = httpx.put(f"{server.url}{path}", timeout=WAIT)

    assert answer.status_code == 405
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/v1/models", "/v1/models/kvactors"])
def test_who_looks_for_a_head_gets_that_of_what_there_is(server: Server, path: str) -> None:
    head, whole = (
        httpx.request(kind, f"{server.url}{path}", timeout=WAIT) for kind in ("HEAD", "GET")
    )

    assert head.status_code == whole.status_code == 200
    assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.content == b""


@pytest.mark.parametrize(
    "roles",
    [["assistant"], ["system"], ["user", "assistant"], ["tool"], ["assistant", "user"],
     ["user", "system"], ["system", "user", "system", "user"], ["tool", "tool"]],
)  # fmt: skip
def test_any_order_of_roles_is_answered_or_refused(server: Server, roles: list[str]) -> None:
    before = len(system_of(server).agents())
    said = [{"role": r, "content": f"{r} {i}", "tool_call_id": "x"} for i, r in enumerate(roles)]

    answer = post(server, asked() | {"messages": said, "stream": True})

    refused = roles == ["assistant"]
    assert answer.status_code == (400 if refused else 200), answer.text
    assert len(system_of(server).agents()) == before + (not refused)


@pytest.mark.parametrize("host", ["[::1", "[", "a]b", "127.0.0.1@evil.example", ""])
def test_what_is_no_host_is_refused(server: Server, host: str) -> None:
    url = httpx.URL(server.url)
    for name, value in (("Host", host), ("Origin", f"http://{host or '['}")):
        connection = http.client.HTTPConnection(url.host, url.port or 80, timeout=WAIT)
        connection.request("GET", "/v1/models", headers={name: value})
        assert connection.getresponse().status == 403
        connection.close()


@pytest.mark.parametrize("host", ["[::1]:80", "LOCALHOST:1", "127.0.0.1"])
def test_its_own_names_are_answered_to(server: Server, host: str) -> None:
    assert httpx.get(f"{server.url}/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "options",
    [{"seed": 2**80}, {"seed": -1}, {"temperature": 1e308}, {"top_p": 0}, {"max_tokens": 10**30},
     {"stop": [""]}, {"stop": ["x"] * 5000}, {"stop": ["x" * 100_000]}, {"logit_bias": {"a": []}},
     {"tools": [{}]}, {"messages": [[]]}, {"messages": [{"role": []}]}, {"tool_choice": {}},
     {"messages": [{"role": "user", "content": [None]}]}, {"response_format": {"type": []}},
     {"tools": [{"type": "function", "function": {"name": "f", "parameters": [1]}}]},
     {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
     {"response_format": {"type": "json_schema", "json_schema": "x"}},
     {"tool_choice": {"function": "x"}}, {"stream_options": []},
     {"messages": [{"role": "user", "content": "x", "tool_calls": 5}]},
     {"prompt_cache_key": "\ud800\0"}],
)  # fmt: skip
def test_odd_values_never_are_the_servers_fault(server: Server, options: dict[str, Any]) -> None:
    answer = post(server, asked("hello") | options)

    assert answer.status_code in (200, 400), answer.text


def test_pages_of_a_listed_site_may_call_and_read_and_those_of_others_not() -> None:
    page, other = "https://page.example", "https://other.example"
    key = "k" * 20
    asking = {"access-control-request-method": "POST", "access-control-request-headers": "x"}
    with (
        AgentSystem(FaultyModel(), store=False) as system,
        serve(system, port=0, any_model=True, origins=(page,), keys=lambda: {key}) as server,
    ):
        url = f"{server.url}/v1/chat/completions"
        may = httpx.options(url, headers={"origin": page} | asking)
        may_not = httpx.options(url, headers={"origin": other} | asking)
        read = post(server, asked("hello"), origin=page, authorization=f"Bearer {key}")
        refused = post(server, asked("hello"), origin=other, authorization=f"Bearer {key}")

    assert may.status_code == 200
    assert may.headers["access-control-allow-origin"] == page
    assert may_not.status_code == 400
    assert read.headers["access-control-allow-origin"] == page
    assert refused.status_code == 403


def test_a_port_that_is_taken_is_an_error_and_ends_no_program(server: Server) -> None:
    taken = httpx.URL(server.url).port
    assert taken is not None

    with (
        AgentSystem(FaultyModel(), store=False) as system,
        pytest.raises(OSError, match=str(taken)),
        serve(system, port=taken),
    ):
        pass
