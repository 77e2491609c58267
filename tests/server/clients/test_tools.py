"""Tool loops and thinking through the openai and the anthropic package: a turn that called tools is
found again by the ids of its calls, whatever the client made of the rest."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from puppets import Asks, Chat, Messages, Said, call, puppet_server, thinking, with_tools

from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.testing import PuppetModel

INTERFACES = [Chat(stream=False), Chat(stream=True), Messages(stream=False), Messages(stream=True)]
HELLO = {"role": "user", "content": "What is in a.py and b.py? " + "Look well. " * 8}
LOOKS = f"<think>I need both files.</think>\n\nI look.\n{call('read', path='a.py', line=3)}"
BOTH = f"{LOOKS}\n{call('read', path='b.py')}"


@dataclass
class Stage:
    """A server, what its puppet `says` next, and what it has `heard`."""

    server: Server
    says: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)


@pytest.fixture(scope="module", params=[thinking, with_tools], ids=["generic", "template"])
def the_stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    says, heard = list[str](), list[str]()

    def script(said: str) -> str:
        heard.append(said)
        return says.pop(0)

    with puppet_server(PuppetModel(script, tokenizer=request.param)) as server:
        yield Stage(server, says, heard)


@pytest.fixture
def stage(the_stage: Stage) -> Stage:
    """The stage, empty."""
    the_stage.says.clear()
    the_stage.heard.clear()
    return the_stage


@pytest.fixture(params=INTERFACES, ids=str)
def ask(request: pytest.FixtureRequest) -> Asks:
    """An interface."""
    interface: Asks = request.param
    return interface


def hello(request: pytest.FixtureRequest) -> list[Any]:
    """A conversation that no other test has."""
    return [{"role": "user", "content": f"{request.node.name}: {HELLO['content']}"}]


def test_a_call_is_made(stage: Stage, ask: Asks, request: pytest.FixtureRequest) -> None:
    stage.says += [LOOKS]

    said = ask(stage.server, hello(request))

    assert said.text.strip() == "I look."
    assert said.thought.strip() == "I need both files."
    assert [(name, given) for _, name, given in said.calls] == [
        ("read", {"path": "a.py", "line": 3})
    ]
    assert said.reason in ("tool_calls", "tool_use")
    assert '"edit"' in stage.heard[0]


def test_calls_are_made_together(stage: Stage, ask: Asks, request: pytest.FixtureRequest) -> None:
    stage.says += [BOTH]

    said = ask(stage.server, hello(request))

    assert [given["path"] for _, _, given in said.calls] == ["a.py", "b.py"]
    assert len({call_id for call_id, _, _ in said.calls}) == 2


def test_the_results_of_a_call_go_on_its_turn(
    stage: Stage, ask: Asks, request: pytest.FixtureRequest
) -> None:
    stage.says += [BOTH, "Nothing at all."]
    messages = hello(request)
    first = ask(stage.server, messages)
    (one, *_), (two, *_) = first.calls

    results = ask.results({one: "is empty", two: "is empty too"})
    second = ask(stage.server, [*messages, first.message, *results])

    assert second.text == "Nothing at all."
    assert stage.heard[1].startswith(stage.heard[0] + BOTH)
    assert "is empty too" in stage.heard[1]
    assert computed_beyond(first, second) < 200


def test_where_no_role_is_the_tools_a_user_tells_their_results(
    stage: Stage, request: pytest.FixtureRequest
) -> None:
    """A role that a template writes though it knows of no tools was shown to no model."""
    stage.says += [LOOKS, "Nothing."]
    ask, messages = Chat(stream=False), hello(request)
    first = ask(stage.server, messages)
    ask(stage.server, [*messages, first.message, *ask.results({first.calls[0][0]: "is empty"})])

    new = stage.heard[1][len(stage.heard[0]) :]
    told = "<|start|>user\n<tool_response>\nis empty\n</tool_response>"
    assert (told in new) == ("generic" in request.node.name)
    assert ("<|start|>tool\nis empty" in new) == ("template" in request.node.name)


def reworded(message: dict[str, Any]) -> dict[str, Any]:
    """Arguments in another order and form."""
    text = json.dumps(message)
    for made in message.get("tool_calls", ()):
        given = json.loads(made["function"]["arguments"])
        made["function"]["arguments"] = json.dumps(dict(reversed(given.items())), indent=1)
    for block in message["content"] if isinstance(message["content"], list) else ():
        if block["type"] == "tool_use":
            block["input"] = dict(reversed(block["input"].items()))
    assert json.dumps(message) != text
    return message


def wordless(message: dict[str, Any]) -> dict[str, Any]:
    """Without what it said."""
    if isinstance(message.get("content"), list):
        message["content"] = [block for block in message["content"] if block["type"] != "text"]
    else:
        message["content"] = None
    return message


def thoughtless(message: dict[str, Any]) -> dict[str, Any]:
    """Without what it thought."""
    message.pop("reasoning_content", None)
    if isinstance(message.get("content"), list):
        message["content"] = [block for block in message["content"] if block["type"] != "thinking"]
    return message


def bare(message: dict[str, Any]) -> dict[str, Any]:
    """All at once."""
    return thoughtless(wordless(reworded(message)))


@pytest.mark.parametrize(
    ("change", "parts"),
    [(reworded, False), (wordless, True), (thoughtless, False), (bare, True)],
    ids=["reworded", "wordless", "thoughtless", "bare"],
)
def test_a_turn_is_found_by_its_calls_whatever_else_changed(
    stage: Stage,
    ask: Asks,
    request: pytest.FixtureRequest,
    change: Callable[[dict[str, Any]], dict[str, Any]],
    *,
    parts: bool,
) -> None:
    stage.says += [LOOKS, "Nothing."]
    messages = hello(request)
    first = ask(stage.server, messages)
    results = ask.results({first.calls[0][0]: "is empty"}, parts=parts)

    second = ask(stage.server, [*messages, change(first.message), *results])

    assert stage.heard[1].startswith(stage.heard[0] + LOOKS)
    assert computed_beyond(first, second) < 100


def test_a_long_loop_computes_only_what_is_new(
    stage: Stage, ask: Asks, request: pytest.FixtureRequest
) -> None:
    stage.says += [call("edit", path=f"{number}.py") for number in range(6)] + ["Done."]
    messages, last = hello(request), None
    for number in range(7):
        said = ask(stage.server, messages)
        if last is not None:
            assert computed_beyond(last, said) < 100
        last = said
        messages += [bare_of_words(said.message)]
        messages += ask.results({call_id: f"edited {number}" for call_id, _, _ in said.calls})

    assert said.text == "Done."
    assert said.cached > 0.9 * said.prompt


def test_results_in_another_order_are_the_same_results(
    stage: Stage, ask: Asks, request: pytest.FixtureRequest
) -> None:
    stage.says += [BOTH, call("edit", path="a.py"), "Done."]
    messages = hello(request)
    first = ask(stage.server, messages)
    (one, *_), (two, *_) = first.calls
    given = {one: "is empty " * 30, two: "is full " * 30}
    second = ask(stage.server, [*messages, first.message, *ask.results(given)])

    turned = ask.results(dict(reversed(given.items())))
    edited = ask.results({second.calls[0][0]: "edited"})
    third = ask(stage.server, [*messages, first.message, *turned, second.message, *edited])

    assert third.text == "Done."
    assert computed_beyond(second, third) < 100


def test_a_thought_alone_is_not_said(
    stage: Stage, ask: Asks, request: pytest.FixtureRequest
) -> None:
    stage.says += ["<think>It is simple.</think>\n\nFour.", "Five."]
    messages = hello(request)

    first = ask(stage.server, messages)
    further = {"role": "user", "content": "And one more?"}
    second = ask(stage.server, [*messages, thoughtless(first.message), further])

    assert (first.thought.strip(), first.text) == ("It is simple.", "Four.")
    assert second.text == "Five."
    assert computed_beyond(first, second) < 100


def test_a_call_that_is_cut_is_no_call(
    stage: Stage, ask: Asks, request: pytest.FixtureRequest
) -> None:
    stage.says += [LOOKS]

    said = ask(stage.server, hello(request), max_tokens=len(LOOKS) - 40)

    assert said.calls == []
    assert said.reason in ("length", "max_tokens")
    assert said.text == "I look."


@pytest.mark.parametrize(
    "wrong",
    [
        "read a.py",
        '{"name": "read", "arguments": [',
        '{"arguments": {}}',
        '{"name": 5}',
        "[]",
        '{"name": "read", "arguments": {"line": NaN}}',
        '{"name": "read", "arguments": {"line": 1e999}}',
        '{"name": "read", "arguments": {"path": "\\ud800"}}',
        '{"name": "read", "arguments": [1]}',
        '{"name": "read", "arguments": null}',
        '{"name": "read", "arguments": "[1]"}',
    ],
)
def test_a_call_that_cannot_be_read_is_text(
    stage: Stage, ask: Asks, request: pytest.FixtureRequest, wrong: str
) -> None:
    text = f"I look. <tool_call>\n{wrong}\n</tool_call> So."
    stage.says += [text]

    said = ask(stage.server, hello(request))

    assert said.text == text
    assert said.calls == []
    assert said.reason in ("stop", "end_turn")


def test_without_tools_a_call_is_text(
    stage: Stage, ask: Asks, request: pytest.FixtureRequest
) -> None:
    stage.says += [call("read", path="a.py")]

    said = ask(stage.server, hello(request), tools=())

    assert said.text == call("read", path="a.py")


def bare_of_words(message: dict[str, Any]) -> dict[str, Any]:
    """As clients send an answer back that was nothing but calls."""
    return thoughtless(wordless(message)) if message.get("tool_calls") else message


def computed_beyond(first: Said, second: Said) -> int:
    """Tokens that were computed for the `second` turn beyond what the `first` one left, and of
    what it left."""
    assert second.cached >= first.prompt
    return second.prompt - second.cached
