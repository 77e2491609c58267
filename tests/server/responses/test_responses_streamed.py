"""The events of a streamed response: their order, ids and numbers, whatever happens."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import openai
import pytest
from databases import database
from fastapi import FastAPI
from responding import GREEDY, TOLD
from scripted_answers import ScriptedAnswers
from starlette.testclient import TestClient

from kvactors.actors.frontends.server.exchange.events import Said, Thought, TokenLogprob
from kvactors.actors.frontends.server.web.serve import Server
from kvactors.actors.frontends.server.wire.models import Named
from kvactors.actors.frontends.server.wire.responses.routes import responses_routes
from kvactors.actors.frontends.server.wire.responses.store import ResponseStore
from kvactors.core.errors import AdmissionFull, ContextExceeded

T = TypeVar("T")
MESSAGE = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]
THINKING = [kind.replace("output_text", "reasoning_text") for kind in MESSAGE]
CALL = [
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
]
BEGUN = ["response.created", "response.in_progress"]
TOOLS: Any = [
    {"type": "function", "name": "look", "parameters": {"type": "object"}},
    {
        "type": "namespace",
        "name": "files",
        "description": "Files.",
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object"}}],
    },
    {"type": "web_search"},
]
CALLED = '<tool_call>\n{"name": "files__read", "arguments": {"path": "a.txt"}}\n</tool_call>'


class Puppet:
    """A `client` of a server whose model says what it is told."""

    client: Any

    def __init__(self, server: Server, *pieces: Any, ping_seconds: float = 10) -> None:
        async def run(work: Callable[[], T]) -> T:
            return work()

        self.answers = ScriptedAnswers(server.service.dialect, *pieces)
        store = ResponseStore(database(), run)
        app = FastAPI()
        app.include_router(
            responses_routes(self.answers, Named("default"), store, ping_seconds=ping_seconds)
        )
        url = "http://testserver/v1"
        inside: Any = TestClient(app)
        self.client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=inside)
        self.responses = self.client.responses

    def streamed(self, **options: Any) -> list[Any]:
        return stream(self.client, **options)


def stream(client: Any, given: Any = TOLD, **options: Any) -> list[Any]:
    events = list(client.responses.create(input=given, stream=True, **(GREEDY | options)))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


def kinds(events: list[Any]) -> list[str]:
    """Of events, in order; several deltas in a row are one."""
    found = list[str]()
    for event in events:
        if not (event.type.endswith(".delta") and found and found[-1] == event.type):
            found.append(event.type)
    return found


def test_a_message_is_added_empty_and_filled(client: Any) -> None:
    events = stream(client)

    assert kinds(events) == [*BEGUN, *MESSAGE, "response.completed"]
    created, last = events[0].response, events[-1].response
    assert (created.output, created.status, created.usage) == ([], "in_progress", None)
    assert (created.id, created.created_at) == (last.id, last.created_at)
    added, part = events[2].item, events[3].part
    assert (added.content, added.status, part.text) == ([], "in_progress", "")
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert "".join(event.delta for event in deltas) == last.output_text
    assert all(event.logprobs == [] for event in deltas)
    assert {event.item_id for event in deltas} == {added.id, last.output[0].id}
    assert {event.output_index for event in deltas} == {0}
    assert events[-2].item == last.output[0]
    assert last.usage.output_tokens > 0


def test_the_wire_names_events_and_numbers_none(client: Any) -> None:
    answer = client.responses.with_raw_response.create(input=TOLD, stream=True, **GREEDY)
    lines = answer.http_response.read().decode().splitlines()

    assert lines[0] == "event: response.created"
    assert not [line for line in lines if line.startswith("id:")]
    assert lines[-2].startswith('data: {"type": "response.completed"')


def test_the_package_gathers_the_same(client: Any) -> None:
    with client.responses.stream(input=TOLD, **GREEDY) as stream:
        final = stream.get_final_response()

    assert final.output_text == client.responses.retrieve(final.id).output_text


def test_a_stream_that_is_cut_is_incomplete(client: Any) -> None:
    events = stream(client, max_output_tokens=2)

    assert kinds(events) == [*BEGUN, *MESSAGE, "response.incomplete"]
    assert events[-1].response.status == "incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"
    assert events[-2].item.status == "incomplete"


def test_a_call_is_returned_with_its_namespace(server: Server) -> None:
    puppet = Puppet(server, "I will ", "look.", CALLED[:20], CALLED[20:])

    events = puppet.streamed(tools=TOOLS)

    assert kinds(events) == [*BEGUN, *MESSAGE, *CALL, "response.completed"]
    message, call = events[-1].response.output
    assert message.content[0].text == "I will look."
    assert (call.namespace, call.name, call.arguments) == ("files", "read", '{"path": "a.txt"}')
    added = next(e.item for e in events if e.type == CALL[0] and e.item.type == "function_call")
    assert (added.arguments, added.namespace, added.id) == ("", "files", call.id)
    done = next(event for event in events if event.type == CALL[2])
    assert (done.arguments, done.name, done.output_index) == (call.arguments, "read", 1)


def test_thoughts_are_their_own_summary_to_who_asks_for_one(server: Server) -> None:
    events = Puppet(server, Thought("Hm."), "So.").streamed(reasoning={"summary": "auto"})

    thought, _ = events[-1].response.output
    assert (thought.summary[0].text, thought.content) == ("Hm.", None)
    told = [event for event in events if "_summary_" in event.type]
    steps = ("part.added", "text.delta", "text.done", "part.done")
    assert kinds(told) == [f"response.reasoning_summary_{step}" for step in steps]
    assert {(event.item_id, event.summary_index) for event in told} == {(thought.id, 0)}


def test_what_comes_back_of_a_turn_is_one_message(server: Server) -> None:
    puppet = Puppet(server, Thought("Hm."), "I look.", CALLED, CALLED)
    asked = {"role": "user", "content": "What is in a.txt?"}
    first = puppet.responses.create(input=[asked], tools=TOOLS, **GREEDY)
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "nothing"}
        for call in first.output
        if call.type == "function_call"
    ]

    puppet.responses.create(
        input=[asked, *(item.to_dict() for item in first.output), *results], tools=TOOLS, **GREEDY
    )

    question, answer, *told = puppet.answers.asked[1].messages
    assert (question.role, answer.role) == ("user", "assistant")
    assert (answer.text, answer.thinking) == ("I look.", "Hm.")
    assert [(call.namespace, call.name) for call in answer.calls] == [("files", "read")] * 2
    assert [(m.role, m.text, m.name) for m in told] == [("tool", "nothing", "read")] * 2
    assert [call.call_id for call in answer.calls] == [message.call_id for message in told]


def test_only_allowed_tools_may_be_called(server: Server) -> None:
    puppet = Puppet(server, "No.")
    allowed = {"type": "allowed_tools", "mode": "required"}
    choice = {**allowed, "tools": [{"type": "function", "name": "look"}]}

    puppet.responses.create(input=TOLD, tools=TOOLS, tool_choice=choice, **GREEDY)

    (inquiry,) = puppet.answers.asked
    assert [tool.name for tool in inquiry.tools] == ["look"]
    assert inquiry.choice.mode == "required"


def test_thoughts_are_an_item_before_the_answer(server: Server) -> None:
    events = Puppet(server, Thought("Let me "), Thought("see."), Said("Four.")).streamed()

    assert kinds(events) == [*BEGUN, *THINKING, *MESSAGE, "response.completed"]
    thought, message = events[-1].response.output
    assert (thought.content[0].text, message.content[0].text) == ("Let me see.", "Four.")
    assert events[-1].response.usage.output_tokens_details.reasoning_tokens == 2


def test_an_answer_without_words_is_an_empty_message(server: Server) -> None:
    events = Puppet(server).streamed()

    deltas = "response.output_text.delta"
    assert kinds(events) == [*BEGUN, *(k for k in MESSAGE if k != deltas), "response.completed"]
    assert events[-1].response.output_text == ""


def test_logprobs_come_where_they_are_asked_for(server: Server) -> None:
    likely = TokenLogprob(7, "Four", -0.5, ((7, "Four", -0.5), (8, "Five", -2.0)))
    puppet = Puppet(server, Said("Four", (likely,)))

    events = puppet.streamed(include=["message.output_text.logprobs"], top_logprobs=2)

    assert puppet.answers.asked[0].top_logprobs == 2
    (delta,) = [event for event in events if event.type == "response.output_text.delta"]
    assert [top.token for top in delta.logprobs[0].top_logprobs] == ["Four", "Five"]
    assert events[-1].response.output[0].content[0].logprobs[0].logprob == -0.5


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (ContextExceeded("100 tokens are too many"), "context_length_exceeded", 400),
        (AdmissionFull("too many turns"), "rate_limit_exceeded", 429),
        (RuntimeError("a secret"), "server_error", 500),
    ],
)
def test_what_fails_after_the_first_byte_is_an_event(
    server: Server, error: Exception, code: str, status: int
) -> None:
    puppet = Puppet(server, Said("I begin"), error)

    events = puppet.streamed()

    assert kinds(events) == [*BEGUN, *MESSAGE[:3], "response.failed"]
    failed = events[-1].response
    assert (failed.status, failed.error.code) == ("failed", code)
    assert "secret" not in failed.error.message
    assert failed.output[0].status == "incomplete"
    assert puppet.responses.retrieve(failed.id) == failed


def test_pings_are_data_that_the_package_survives(
    server: Server,
) -> None:
    slow = Puppet(server, lambda: asyncio.sleep(0.2), Said("At last."), ping_seconds=0.01)

    events = list(slow.responses.create(input=TOLD, stream=True, **GREEDY))
    with slow.responses.stream(input=TOLD, **GREEDY) as stream:
        final = stream.get_final_response()

    pings = [event for event in events if event.type == "ping"]
    assert len(pings) > 2
    told = [event for event in events if event.type != "ping"]
    assert kinds(told) == [*BEGUN, *MESSAGE, "response.completed"]
    assert events[0].type == "response.created"
    assert final.output_text == "At last."


def test_other_instructions_are_told_in_front_of_what_is_new(server: Server) -> None:
    puppet = Puppet(server, "Yes.")
    first = puppet.responses.create(input=TOLD, instructions="Old.", **GREEDY)
    second = puppet.responses.create(
        input="And?", instructions="New.", previous_response_id=first.id, **GREEDY
    )
    puppet.responses.create(
        input="And?", instructions="New.", previous_response_id=second.id, **GREEDY
    )
    puppet.responses.create(input="And?", previous_response_id=second.id, **GREEDY)

    asked = [[(m.role, m.text) for m in inquiry.messages] for inquiry in puppet.answers.asked]
    assert asked[0] == [("system", "Old."), ("user", TOLD)]
    (role, told), new = asked[1]
    assert (role, new) == ("system", ("user", "And?"))
    assert "in place of the earlier" in told
    assert told.endswith("New.")
    assert asked[2] == asked[3] == [("user", "And?")]
    assert [i.goes_on for i in puppet.answers.asked] == ["", "answer1", "answer2", "answer2"]


def test_the_form_of_an_answer_is_asked_for(server: Server) -> None:
    puppet = Puppet(server, "{}")
    schema = {"type": "object", "properties": {}}
    form = {"type": "json_schema", "name": "nothing", "schema": schema}

    puppet.responses.create(input=TOLD, text={"format": form}, **GREEDY)
    puppet.responses.create(input=TOLD, text={"format": {"type": "json_object"}}, **GREEDY)
    puppet.responses.create(input=TOLD, text={"format": {"type": "text"}}, **GREEDY)

    first, second, third = (inquiry.form for inquiry in puppet.answers.asked)
    assert first is not None
    assert first.schema == schema
    assert second is not None
    assert second.schema is None
    assert third is None
