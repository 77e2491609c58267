"""Answers of messages with a header each, as gpt-oss writes them, through the openai and the
anthropic package: what is analysed is thought, what goes to a tool is a call, the rest is said."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from call_forms import channels
from puppets import Asks, Chat, Messages, puppet_server

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.dialect.forms import channel_grammar
from kvactors.actors.frontends.server.dialect.marks import Channels, called_in
from kvactors.actors.frontends.server.dialect.reader import Reader
from kvactors.actors.frontends.server.exchange.events import Said, Thought
from kvactors.actors.frontends.server.exchange.inquiry import Form, Inquiry, Tool, ToolChoice
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import PuppetModel
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.schedule.guide import Guide

INTERFACES = [Chat(stream=False), Chat(stream=True), Messages(stream=False), Messages(stream=True)]
NEXT = "<|end|><|start|>assistant"
THINKS = f"<|channel|>analysis<|message|>Is it?{NEXT}"
FINAL = "<|channel|>final<|message|>"
LOOKS = (
    f"{THINKS}<|channel|>commentary<|message|>I look.{NEXT}"
    '<|channel|>commentary to=functions.read <|constrain|>json<|message|>{"path": "a"}<|call|>'
)
ASKED = [{"role": "user", "content": "What is in a?"}]


class Stage:
    """A server, what its puppet `says` next, and what it has `heard`."""

    def __init__(self) -> None:
        self.says: list[str] = []
        self.heard: list[str] = []
        self.server: Server

    def script(self, heard: str) -> str:
        self.heard.append(heard)
        return self.says.pop(0)


@pytest.fixture(params=INTERFACES, ids=str)
def ask(request: pytest.FixtureRequest) -> Asks:
    """An interface."""
    interface: Asks = request.param
    return interface


@pytest.fixture(scope="module")
def the_stage() -> Iterator[Stage]:
    stage = Stage()
    with puppet_server(PuppetModel(stage.script, tokenizer=channels)) as server:
        stage.server = server
        yield stage


@pytest.fixture
def stage(the_stage: Stage) -> Stage:
    """The stage, empty."""
    the_stage.says.clear()
    the_stage.heard.clear()
    return the_stage


def test_what_is_analysed_is_thought_and_what_is_final_is_said(stage: Stage, ask: Asks) -> None:
    stage.says += [f"{THINKS}{FINAL}It is."]

    said = ask(stage.server, ASKED, tools=())

    assert (said.thought, said.text, said.calls) == ("Is it?", "It is.", [])
    assert said.reason in ("stop", "end_turn")


def test_a_message_to_a_tool_is_a_call_and_its_result_names_the_tool(
    stage: Stage, ask: Asks
) -> None:
    stage.says += [LOOKS, f"{FINAL}Nothing."]
    first = ask(stage.server, ASKED)
    ((call_id, name, given),) = first.calls
    second = ask(stage.server, [*ASKED, first.message, *ask.results({call_id: 'is "empty"'})])

    assert (first.thought, first.text) == ("Is it?", "I look.")
    assert (name, given) == ("read", {"path": "a"})
    assert first.reason in ("tool_calls", "tool_use")
    assert second.text == "Nothing."
    result = json.dumps('is "empty"')
    assert stage.heard[1] == (
        f"{stage.heard[0]}{LOOKS}<|start|>functions.read to=assistant<|channel|>commentary"
        f"<|message|>{result}<|end|><|start|>assistant"
    )
    assert second.cached > first.prompt


def test_the_template_writes_the_tools(stage: Stage, ask: Asks) -> None:
    stage.says += [f"{FINAL}Yes."]

    ask(stage.server, ASKED)

    assert "namespace functions {\n" in stage.heard[0]
    assert "type read = (_: " in stage.heard[0]
    assert "Calls go to the commentary channel: 'functions'." in stage.heard[0]
    assert "<tool_call>" not in stage.heard[0]


def test_history_of_others_is_written_as_the_model_would_have_said_it(
    stage: Stage,
) -> None:
    made = {"id": "x1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    history = [
        {"role": "user", "content": "Hello?"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": "I look.", "tool_calls": [made]},
        {"role": "tool", "tool_call_id": "x1", "content": "empty"},
    ]
    stage.says += [f"{FINAL}So."]

    Chat(stream=False)(stage.server, history)

    said = stage.heard[0].partition("<|start|>user<|message|>")[2]
    assert said == (
        f"Hello?<|end|><|start|>assistant{FINAL}Hello.<|end|><|start|>user<|message|>Look.{NEXT}"
        f"<|channel|>commentary<|message|>I look.{NEXT}<|channel|>commentary to=functions.read "
        "<|constrain|>json<|message|>{}<|call|><|start|>functions.read to=assistant"
        '<|channel|>commentary<|message|>"empty"<|end|><|start|>assistant'
    )


def test_a_call_that_is_cut_is_no_call(stage: Stage, ask: Asks) -> None:
    stage.says += [LOOKS]

    said = ask(stage.server, ASKED, max_tokens=len(channels().encode(LOOKS)) - 4)

    assert (said.calls, said.text) == ([], "I look.")
    assert said.reason in ("length", "max_tokens")


def read(text: str, size: int, *, calls: bool = True) -> tuple[str, str, list[Any]]:
    """The text, thoughts and calls of an answer that comes in pieces of this size."""
    reader = Reader(Channels(calls=calls), lambda t, _: [called_in(t)], {}, lambda _: "id")
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    events = [event for piece in pieces for event in reader.feed(piece)] + [*reader.end()]
    assert "".join(event.text for event in events if isinstance(event, Said)) == reader.text
    assert "".join(e.text for e in events if isinstance(e, Thought)) == reader.thoughts
    return reader.text, reader.thoughts, [(c.name, c.arguments) for c in reader.calls]


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (f"{THINKS}{FINAL}So.", ("So.", "Is it?", [])),
        (f"{THINKS}{THINKS}{FINAL}So.", ("So.", "Is it?\n\nIs it?", [])),
        (f"<|channel|>commentary<|message|>One.{NEXT}{FINAL}Two.", ("One.\n\nTwo.", "", [])),
        (LOOKS, ("I look.", "Is it?", [("read", '{"path": "a"}')])),
        (
            " to=functions.read<|channel|>commentary json<|message|>{}",
            ("", "", [("read", "{}")]),
        ),
        (
            "<|channel|>commentary to=functions.read json<|message|>{}",
            ("", "", [("read", "{}")]),
        ),
        ("Hello.", ("Hello.", "", [])),
        ("2 < 3", ("2 < 3", "", [])),
        ("<b>", ("<b>", "", [])),
        ("to=me", ("to=me", "", [])),
        (f"{FINAL}to=me <|message", ("to=me <|message", "", [])),
        (f"{FINAL}The mark <|end|> ends it.", ("The mark <|end|> ends it.", "", [])),
        (f"{FINAL}So.<|end|>", ("So.", "", [])),
        (" to do", (" to do".strip(), "", [])),
        (" ", ("", "", [])),
        ("assist", ("assist", "", [])),
        (f"{THINKS}", ("", "Is it?", [])),
        (f"{THINKS}<|channel|>", ("", "Is it?", [])),
        ("<|channel|>analysis<|message|>Is it?<|end|><|start|>", ("", "Is it?", [])),
        (
            '<|channel|>commentary to=functions.read<|message|>{"a": "x<|end|>y"}',
            ("", "", [("read", '{"a": "x<|end|>y"}')]),
        ),
        (f"{FINAL}", ("", "", [])),
        ("<|channel|>final", ("", "", [])),
        ("", ("", "", [])),
        (
            "<|channel|>commentary to=functions.read<|message|>no JSON",
            ("<|channel|>commentary to=functions.read<|message|>no JSON", "", []),
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_an_answer_is_divided_however_it_comes(
    answer: str, found: tuple[str, str, list[Any]], size: int
) -> None:
    assert read(answer, size) == found


def test_where_nothing_may_be_called_a_message_to_a_tool_is_said() -> None:
    assert read(LOOKS, 1000, calls=False) == ('I look.\n\n{"path": "a"}', "Is it?", [])


@pytest.mark.parametrize(
    "inquiry",
    [
        Inquiry((), form=Form()),
        Inquiry((), tools=(Tool("read"),), choice=ToolChoice("required")),
        Inquiry((), tools=(Tool("read", strict=True),)),
    ],
    ids=["form", "required", "strict"],
)
def test_before_what_has_a_form_there_may_be_a_thought(inquiry: Inquiry) -> None:
    chat = ChatFormat(channels())
    grammar = channel_grammar(inquiry, {tool.name: tool for tool in inquiry.tools})
    assert grammar is not None
    thought = chat.encode("<|channel|>analysis<|message|>What is it about?")
    guide = Guide(chat.grammar_tokens(max(chat.tokenizer.get_vocab().values()) + 1), grammar, 90)

    assert [guide.take(token) for token in thought] == thought
    assert guide.left - len(guide.way) >= 10


@pytest.fixture(scope="module")
def chance() -> Iterator[openai.OpenAI]:
    """A client of a random model."""
    with (
        AgentSystem(PuppetModel((), tokenizer=channels), store=False) as system,
        serve(system, port=0, any_model=True) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


@pytest.mark.parametrize(
    "asked",
    [
        {"tool_choice": "required"},
        {"response_format": {"type": "json_object"}, "tools": ()},
        {"strict": True},
    ],
    ids=["required", "form", "strict"],
)
def test_what_has_a_form_has_headers(chance: Any, asked: dict[str, Any]) -> None:
    asked = dict(asked)
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    function = {"name": "put", "parameters": schema | {"additionalProperties": False}}
    function["strict"] = asked.pop("strict", False)
    options: dict[str, Any] = {"tools": [{"type": "function", "function": function}]} | asked
    if not options["tools"]:
        del options["tools"]

    for seed in range(4):
        choice = chance.chat.completions.create(
            model="any", messages=ASKED, max_tokens=60, temperature=1, seed=seed, **options
        ).choices[0]

        if "tool_choice" in asked:
            (call,) = choice.message.tool_calls
            assert (call.function.name, choice.finish_reason) == ("put", "tool_calls")
        elif "response_format" in asked:
            assert isinstance(json.loads(choice.message.content), dict)
        for call in choice.message.tool_calls or ():
            assert isinstance(json.loads(call.function.arguments)["x"], int)
        assert "<|channel|>" not in (choice.message.content or "")
