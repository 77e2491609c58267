"""What requests say that programs send, read as it is meant."""

import json
from types import SimpleNamespace
from typing import Any

import httpx
import llguidance
import pytest
from chats import WAIT, asked, post
from starlette.requests import Request

from kvactors.actors.frontends.server.answering.asked import FRAME_TOKENS, LONGEST, sampling_of
from kvactors.actors.frontends.server.dialect.forms import call_marks, grammar_of
from kvactors.actors.frontends.server.dialect.marks import Marks
from kvactors.actors.frontends.server.dialect.reader import Reader
from kvactors.actors.frontends.server.exchange.events import Said
from kvactors.actors.frontends.server.exchange.inquiry import Form, Inquiry, Message, Tool
from kvactors.actors.frontends.server.web.guard import Gate
from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.frontends.server.web.settings import Settings
from kvactors.actors.frontends.server.wire import chat_body, messages_body
from kvactors.actors.frontends.server.wire.errors import Failure
from kvactors.actors.frontends.server.wire.reading import record_of
from kvactors.actors.turns.prompt import Continuation
from kvactors.core.errors import InvalidGrammar

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = Tool("weather", "", CITY, strict=True)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
WRONG = CALL.replace('"Rome"', "1")
BYTES = 1000
MISTRAL = ("[TOOL_CALLS]", "")
MADE = '[TOOL_CALLS]\n{"name": "weather", "arguments": {"city": "Rome"}}\n'


def takes(
    text: str,
    marks: tuple[str, str] = ("<tool_call>", "</tool_call>"),
    tool: Tool = WEATHER,
    form: Form | None = None,
) -> bool:
    """Whether an answer may be this `text`, where a `tool` may be called between `marks`, or have
    a `form`."""
    inquiry = Inquiry((Message("user", "x"),), tools=(tool,), form=form)
    grammar = grammar_of(inquiry, {tool.name: tool}, call_marks([marks], lambda _: None))
    assert grammar is not None
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar.text)
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and (
        bool(matcher.is_accepting())
    )


@pytest.mark.parametrize(
    "text",
    ["<html><b>x</b>", "a<b && vector<int>", f"Let me look.\n{CALL}", f"{CALL}\n{CALL}", CALL, ""],
)
def test_beside_a_strict_tool_anything_may_be_said(text: str) -> None:
    assert takes(text)


@pytest.mark.parametrize("text", [WRONG, f"Let me look.\n{WRONG}", "<tool_call>{", f"{CALL} so"])
def test_a_call_of_a_strict_tool_is_what_its_schema_allows(text: str) -> None:
    assert not takes(text)


def called(schema: dict[str, Any], arguments: str, name: str = "f") -> bool:
    """Whether a strict tool of this schema may be called with these `arguments`, by a `name`."""
    said = json.dumps(name, ensure_ascii=False)
    call = f'<tool_call>\n{{"name": {said}, "arguments": {arguments}}}\n</tool_call>'
    return takes(call, tool=Tool(name, "", schema, strict=True))


def test_a_call_and_a_form_beside_it_have_no_blanks_that_nobody_needs() -> None:
    assert not takes(CALL.replace('": "Rome', '":  "Rome'))
    assert not takes(CALL.replace('"arguments": ', '"arguments":\n'))
    assert not takes(CALL.replace("}}", "} }"))
    assert takes('{"city": "Rome"}', form=Form(CITY))
    assert not takes('{"city":\n"Rome"}', form=Form(CITY))


@pytest.mark.parametrize(("day", "there"), [("2024-02-29", True), ("2023-02-29", False)])
def test_a_date_in_a_call_is_a_day_that_there_is(day: str, *, there: bool) -> None:
    dated = CITY | {"properties": {"city": {"type": "string", "format": "date"}}}

    assert called(dated, f'{{"city": "{day}"}}') is there
    assert takes(f'{{"city": "{day}"}}', form=Form(dated)) is there


@pytest.mark.parametrize("own", [{}, {"$id": "https://example.org/here"}])
def test_the_pointers_of_a_tools_schema_are_from_its_own_root(own: dict[str, Any]) -> None:
    kids = {"kids": {"type": "array", "items": {"$ref": "#"}}, "at": {"$ref": "#/$defs/City"}}
    tree = own | CITY | {"properties": kids, "required": ["kids", "at"], "$defs": {"City": CITY}}
    leaf = '{"kids": [], "at": {"city": "Rome"}}'

    assert called(tree, leaf)
    assert called(tree, leaf.replace("[]", f"[{leaf}]"))
    assert not called(tree, leaf.replace('"Rome"', "1"))
    assert not called(tree, leaf.replace("[]", f'[{{"name": "f", "arguments": {leaf}}}]'))


@pytest.mark.parametrize("name", ["$ref", "const", "$defs"])
def test_a_property_may_be_named_as_a_keyword_is(name: str) -> None:
    assert called({"properties": {name: CITY}}, f'{{"{name}": {{"city": "Rome"}}}}')
    assert not called({"properties": {name: CITY}}, f'{{"{name}": {{"city": 1}}}}')


@pytest.mark.parametrize("name", ['a"b', "a\\b", "погода", "\U0001f324"])
def test_a_tool_of_any_name_can_be_called(name: str) -> None:
    assert called(CITY, '{"city": "Rome"}', name)


def test_a_strict_tool_that_cannot_be_held_to_is_named() -> None:
    with pytest.raises(InvalidGrammar, match=r"the tool 'f': .*'/\$defs/none' does not exist"):
        called({"properties": {"a": {"$ref": "#/$defs/none"}}}, "{}")


def test_a_call_without_an_end_is_the_last_one() -> None:
    assert takes("plain [x]", MISTRAL)
    assert takes(MADE, MISTRAL)
    assert not takes('[TOOL_CALLS]weather[ARGS]{"city": 1}', MISTRAL)
    assert not takes(f"{MADE}\n{MADE}", MISTRAL)


def nobody() -> Request:
    return Request({"type": "http", "headers": []})


def chat(**fields: Any) -> Inquiry:
    body = {"messages": [{"role": "user", "content": "x"}], **fields}
    return chat_body.inquiry_of(nobody(), record_of(json.dumps(body).encode(), chat_body.ChatBody))


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_of_the_tools_only_those_that_are_allowed_may_be_called() -> None:
    allowed = {"mode": "required", "tools": [function("a")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}

    inquiry = chat(tools=[function("a"), function("b")], tool_choice=choice)

    assert [tool.name for tool in inquiry.tools] == ["a"]
    assert inquiry.choice.mode == "required"
    with pytest.raises(Failure, match="a mode, and a list of tools"):
        chat(tools=[function("a")], tool_choice={"type": "allowed_tools"})


@pytest.mark.parametrize(("said", "read"), [(None, "{}"), ({"a": 1}, '{"a": 1}'), ("{}", "{}")])
def test_what_a_call_of_a_history_was_given_is_read_however_it_is_said(
    said: Any, read: str
) -> None:
    calls = [{"id": None, "type": "function", "function": {"name": "f", "arguments": said}}]

    (message,) = chat(messages=[{"role": "assistant", "tool_calls": calls}]).messages

    assert [(call.call_id, call.arguments) for call in message.calls] == [("", read)]


@pytest.mark.parametrize(
    ("content", "read"), [("no such file", "Error: no such file"), (None, "Error"), ("", "Error")]
)
def test_the_result_of_a_tool_that_failed_says_so(content: str | None, read: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": content}
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": [result]}]}

    inquiry = messages_body.inquiry_of(
        nobody(), record_of(json.dumps(body).encode(), messages_body.MessagesBody)
    )

    assert inquiry.messages[0].text == read


def test_more_stop_strings_than_anybody_means_are_refused() -> None:
    assert len(chat(stop=["x"] * 64).sampling.stop) == 64
    with pytest.raises(Failure, match="stop"):
        chat(stop=["x"] * 65)


def test_an_answer_begins_with_the_blanks_that_it_has() -> None:
    def said(*pieces: str, marks: Marks) -> str:
        reader = Reader(marks, lambda *_: [], {}, str)
        events = [event for piece in pieces for event in reader.feed(piece)]
        return "".join(e.text for e in (*events, *reader.end()) if isinstance(e, Said))

    assert said("  ", "  return a\n", marks=Marks()) == "    return a\n"
    assert said("\n ", "so", marks=Marks((("<call>", "</call>"),))) == "so"


def test_a_host_is_known_by_its_name_however_it_is_written() -> None:
    gate: Gate = Settings(names=("My.Host",), keys=lambda: {"k" * 20}).gate()

    assert gate.admit([(b"host", b"my.host:8017")], "/health") == ""


def test_a_system_message_alone_is_answered_and_what_follows_it_too(server: Server) -> None:
    told = {"role": "system", "content": "My cat is called Tom. What is my cat called?"}
    again = {"role": "user", "content": "What is my cat called?"}
    said = []

    for messages in ([told], [told, again]):
        (choice,) = post(server, asked("", messages=messages)).json()["choices"]
        said.append(choice["message"]["content"])

    assert said == ["Your cat is called Tom."] * 2


def test_a_field_that_no_header_can_name_is_ignored_all_the_same(server: Server) -> None:
    answer = post(server, asked("hello", поле=1))
    body = {"prompt": "x", "max_tokens": 1, "поле": 1, "a\r\nb": 2}
    completed = httpx.post(f"{server.url}/v1/completions", json=body, timeout=WAIT)

    assert answer.status_code == completed.status_code == 200
    assert completed.headers["x-kvactors-ignored"] == "????, a??b"


@pytest.mark.parametrize(
    ("context", "budget", "most"),
    [
        (200_000, 64 << 30, LONGEST),
        (20_000, 64 << 30, 20_000 - 1 - FRAME_TOKENS),
        (200_000, 4 * 10_000 * BYTES, 10_000 - 1 - FRAME_TOKENS),
        (200_000, 1 << 20, chat_body.MOST_TOKENS),
    ],
)
def test_an_answer_without_a_limit_is_as_long_as_context_and_memory_leave(
    context: int, budget: int, most: int
) -> None:
    spec = SimpleNamespace(context=context, bytes_per_token=BYTES)
    home: Any = SimpleNamespace(chat=None, info=SimpleNamespace(spec=spec, memory_budget=budget))
    silent: Any = SimpleNamespace(grammar=lambda _: None, stops=lambda _: ())
    agent: Any = SimpleNamespace(transcript=lambda: SimpleNamespace(turns=()))
    said = Continuation(0, (("user", "x"),), None)

    assert sampling_of(home, silent, chat(), agent, said).max_tokens == most
    assert sampling_of(home, silent, chat(max_tokens=7), agent, said).max_tokens == 7
