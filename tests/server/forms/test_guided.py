"""Forms of an answer as vLLM's clients ask for them."""

import json
from typing import Any

import httpx
import pytest

from kvactors.actors.frontends.server.web.serve import Server

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CHOICES = ["a+b", "a/b (c)", "[d]"]
LARK = 'start: "one" | "two"'
FORMS: list[tuple[dict[str, Any], Any]] = [
    ({"structured_outputs": {"json": PERSON}}, json.loads),
    ({"structured_outputs": {"json": json.dumps(PERSON)}}, json.loads),
    ({"guided_json": PERSON}, json.loads),
    ({"structured_outputs": {"json_object": True}}, json.loads),
    ({"structured_outputs": {"regex": "[0-9]{3}/[0-9]{2}"}}, lambda text: text.index("/") == 3),
    ({"guided_regex": "[0-9]{3}"}, int),
    ({"structured_outputs": {"choice": CHOICES}}, CHOICES.index),
    ({"guided_choice": CHOICES}, CHOICES.index),
    ({"structured_outputs": {"grammar": LARK}}, ["one", "two"].index),
    ({"guided_grammar": LARK}, ["one", "two"].index),
]
ASKED: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "Say it."}]},
    "completions": {"prompt": "Say it."},
}


def post(server: Server, path: str, **body: Any) -> httpx.Response:
    asked = {**ASKED[path], "max_tokens": 60, "temperature": 0.5, **body}
    return httpx.post(f"{server.url}/v1/{path}", json=asked, timeout=60)


@pytest.mark.parametrize("path", ASKED)
@pytest.mark.parametrize(("form", "read"), FORMS)
def test_an_answer_has_the_form_that_is_asked_for(
    server: Server, path: str, form: dict[str, Any], read: Any
) -> None:
    answer = post(server, path, **form)

    assert answer.status_code == 200, answer.text
    assert "x-kvactors-ignored" not in answer.headers
    choice = answer.json()["choices"][0]
    read(choice["text"] if path == "completions" else choice["message"]["content"])


@pytest.mark.parametrize("pattern", [r"a\/b", "a/b", r"a[\/]b", r"a[/]b"])
def test_a_pattern_may_have_slashes_beside_tools(server: Server, pattern: str) -> None:
    tool = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}

    answer = post(server, "chat/completions", tools=[tool], guided_regex=pattern)

    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    assert message.get("tool_calls") or message["content"] == "a/b"


def test_a_pattern_stands_beside_tools(server: Server) -> None:
    tool = {"type": "function", "function": {"name": "run", "parameters": {"type": "object"}}}

    answer = post(server, "chat/completions", tools=[tool], guided_choice=CHOICES)

    assert answer.status_code == 200, answer.text
    message = answer.json()["choices"][0]["message"]
    assert message.get("tool_calls") or message["content"] in CHOICES


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        ({"guided_regex": "[", "guided_choice": None}, "guided_regex"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "one form"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": "a"}}, "structured_outputs.choice"),
        ({"structured_outputs": {"regex": 7}}, "structured_outputs.regex"),
        ({"structured_outputs": {"json_object": "yes"}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag"),
        ({"reasoning": {"enabled": "false"}}, "reasoning.enabled"),
        ({"reasoning": {"max_tokens": -5}}, "reasoning.max_tokens"),
        ({"structured_outputs": {"json": {"type": "nothing"}}}, "structured_outputs.json"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "one form"),
        (
            {"guided_grammar": LARK, "tools": [{"type": "function", "function": {"name": "run"}}]},
            "stands alone",
        ),
    ],
)
def test_what_is_no_form_is_refused_with_its_field(
    server: Server, body: dict[str, Any], rule: str
) -> None:
    answer = post(server, "chat/completions", **body)

    assert answer.status_code == 400, answer.text
    assert rule in answer.text


def test_other_wishes_are_named(server: Server) -> None:
    wishes = {"regex": "[0-9]", "whitespace_pattern": "x", "disable_any_whitespace": False}

    answer = post(server, "chat/completions", structured_outputs=wishes)

    assert answer.headers["x-kvactors-ignored"] == "structured_outputs.whitespace_pattern"
