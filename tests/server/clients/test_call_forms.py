"""Tool loops in the forms of calls and results that some families' templates have."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from call_forms import channels, results_within, tools_apart
from puppets import Chat, call, puppet_server, thinking
from small_tokenizers import CHATML

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.dialect.dialect import Dialect
from kvactors.actors.frontends.server.exchange.inquiry import Inquiry, Message, Tool
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import PuppetModel
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.errors import InvalidGrammar, TemplateError
from kvactors.core.schedule.guide import Guide

ASKED = [{"role": "user", "content": "What is in a?"}]
CHAT = Chat(stream=True)
# More than any of these tokenizers has.
LARGE = 1000


@contextmanager
def stage(tokenizer: Callable[[], Any], *says: str) -> Iterator[tuple[Server, list[str]]]:
    """A server whose puppet `says` this, and what it has heard."""
    heard, answers = list[str](), iter(says)

    def script(said: str) -> str:
        heard.append(said)
        return next(answers)

    with puppet_server(PuppetModel(script, tokenizer=tokenizer)) as server:
        yield server, heard


def test_a_result_goes_on_the_answer_that_called() -> None:
    calls = "".join(
        f'<|tool_call>call:{name}{{path:<|"|>a<|"|>}}<tool_call|>' for name in ("read", "edit")
    )
    with stage(results_within, f"{calls}<|tool_response>", "Nothing.") as (server, heard):
        first = CHAT(server, [{"role": "system", "content": "Be kind."}, *ASKED])
        results = CHAT.results({call_id: f"of {name}" for call_id, name, _ in first.calls})
        told = [{"role": "system", "content": "Be kind."}, *ASKED, first.message, *results]
        second = CHAT(server, told)

    assert [(name, given) for _, name, given in first.calls] == [
        ("read", {"path": "a"}),
        ("edit", {"path": "a"}),
    ]
    assert "Be kind.<|tool>read<tool|><|tool>edit<tool|><turn|>" in heard[0]
    assert heard[1] == (
        f"{heard[0]}{calls}<|tool_response>response:read{{of read}}<tool_response|>"
        "<|tool_response>response:edit{of edit}<tool_response|>"
    )
    assert second.text == "Nothing."
    assert second.cached > first.prompt


@pytest.mark.parametrize(
    "said",
    [
        '[TOOL_CALLS]read[ARGS]{"path": "a"}',
        '[TOOL_CALLS]read[CALL_ID]a1b2c3d4e[ARGS]{"path": "a"}',
        call("read", path="a"),
    ],
    ids=["own", "with an id", "told"],
)
def test_a_call_is_read_in_the_models_own_form_and_in_the_one_that_it_was_told(said: str) -> None:
    with stage(tools_apart, f"I look.{said}", "Nothing.") as (server, _):
        first = CHAT(server, ASKED)
        results = CHAT.results({call_id: "empty" for call_id, _, _ in first.calls})
        second = CHAT(server, [*ASKED, first.message, *results])

    assert [(name, given) for _, name, given in first.calls] == [("read", {"path": "a"})]
    assert (first.text, second.text) == ("I look.", "Nothing.")
    assert second.cached > first.prompt


@pytest.mark.parametrize("system", ["", "Be kind."])
def test_tools_that_no_system_prompt_can_say_stand_where_the_template_writes_them(
    system: str,
) -> None:
    own = '[TOOL_CALLS]read[CALL_ID]a1b2c3d4e[ARGS]{"path": "a"}'
    asked = [{"role": "system", "content": system}, *ASKED] if system else ASKED
    with stage(tools_apart, own, "Nothing.", "Yes.") as (server, heard):
        first = CHAT(server, asked)
        results = CHAT.results({call_id: "empty" for call_id, _, _ in first.calls})
        CHAT(server, [*asked, first.message, *results])
        other = CHAT(server, [*asked[:-1], {"role": "user", "content": "And in b?"}])

    prompt = f"[SYSTEM_PROMPT]{system}[/SYSTEM_PROMPT]" if system else ""
    begins, _, listed = heard[0].partition("[AVAILABLE_TOOLS]")
    assert begins == f"<s>{prompt}"
    assert '"name": "read"' in listed
    assert "<tools>" not in listed
    assert listed.endswith("[/AVAILABLE_TOOLS][INST]What is in a?[/INST]")
    result = "[TOOL_RESULTS]a1b2c3d4e[TOOL_CONTENT]empty[/TOOL_RESULTS]"
    assert heard[1] == f"{heard[0]}{own}</s>{result}"
    # Who begins alike has what is computed of it.
    assert heard[2] == heard[0].replace("What is in a?", "And in b?")
    assert other.cached > len(listed) // 2


def test_calls_of_others_are_written_as_the_template_writes_them() -> None:
    made = {"id": "x1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    told = {"role": "assistant", "content": "I look.", "tool_calls": [made]}
    result = {"role": "tool", "tool_call_id": "x1", "content": "empty"}
    with stage(tools_apart, "So.") as (server, heard):
        CHAT(server, [*ASKED, told, result])

    called = "I look.[TOOL_CALLS]read[CALL_ID]0000000x1[ARGS]{}</s>"
    answered = "[TOOL_RESULTS]0000000x1[TOOL_CONTENT]empty[/TOOL_RESULTS]"
    assert heard[0].endswith(f"[INST]What is in a?[/INST]{called}{answered}")


def test_a_system_prompt_that_only_begins_as_a_beginning_is_one() -> None:
    chat = ChatFormat(tools_apart())

    for system in ("<s>", "<s> so", "[INST]", "so"):
        opened = chat.opening("user", "q", system=system, answer=True)
        assert opened == f"<s>[SYSTEM_PROMPT]{system}[/SYSTEM_PROMPT][INST]q[/INST]"
    with pytest.raises(TemplateError, match="user, not 'tool'"):
        chat.opening("tool", "q", system="<s>[INST]", answer=True)


@pytest.mark.parametrize("tokenizer", [results_within, tools_apart])
@pytest.mark.parametrize("choice", ["required", "strict", "form"])
def test_calls_that_must_be_made_are_made_where_marks_are_special_tokens(
    tokenizer: Callable[[], Any], choice: str
) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}
    schema |= {"required": ["x"], "additionalProperties": False}
    function: dict[str, Any] = {"name": "put", "parameters": schema}
    function["strict"] = choice == "strict"
    asked: dict[str, Any] = {"tools": [{"type": "function", "function": function}]}
    asked |= {"tool_choice": "required"} if choice == "required" else {}
    asked |= {"response_format": {"type": "json_object"}} if choice == "form" else {}
    with (
        AgentSystem(PuppetModel((), tokenizer=tokenizer), store=False) as system,
        serve(system, port=0, any_model=True) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        create: Any = client.chat.completions.create
        for seed in range(3):
            said = create(
                model="any", messages=ASKED, max_tokens=60, temperature=1, seed=seed, **asked
            ).choices[0]
            made = said.message.tool_calls or []

            assert made or choice != "required"
            assert all(isinstance(json.loads(c.function.arguments)["x"], int) for c in made)
            if choice == "form" and not made:
                assert isinstance(json.loads(said.message.content), dict)


@pytest.mark.parametrize("tokenizer", [channels, results_within, tools_apart])
def test_histories_that_begin_in_the_middle_are_answered(tokenizer: Callable[[], Any]) -> None:
    hello = {"role": "assistant", "content": "Hi."}
    result = {"role": "tool", "tool_call_id": "x1", "content": "empty"}
    with stage(tokenizer, "So.", "So.", "So.") as (server, _):
        for begins in ([hello], [result], [hello, result]):
            assert CHAT(server, [*begins, *ASKED]).text == "So."


@pytest.mark.parametrize("usual_first", [False, True])
def test_who_begins_in_the_middle_begins_as_nobody_who_asks_first_does(
    *, usual_first: bool
) -> None:
    middle = [{"role": "assistant", "content": "Hi."}, *ASKED]
    both = [ASKED, middle] if usual_first else [middle, ASKED]
    with stage(tools_apart, "So.", "So.") as (server, heard):
        assert [CHAT(server, messages).text for messages in both] == ["So.", "So."]

    begun = [said.startswith("<s>[AVAILABLE_TOOLS]") for said in heard]
    assert begun == [usual_first, not usual_first]


def test_roles_that_the_template_refuses_are_the_requests_fault() -> None:
    refuses = (
        "{% if (messages | rejectattr('role', 'equalto', 'system') | first).role == 'assistant' %}"
        f"{{{{ raise_exception('a user comes first') }}}}{{% endif %}}{CHATML}"
    )
    with stage(lambda: thinking(refuses), "So.") as (server, _):
        with pytest.raises(openai.BadRequestError, match="a user comes first"):
            CHAT(server, [{"role": "assistant", "content": "Hi."}, *ASKED])
        assert CHAT(server, ASKED).text == "So."


@pytest.mark.parametrize("tokenizer", [tools_apart, results_within])
@pytest.mark.parametrize("spelled", [False, True])
def test_what_is_read_as_a_call_of_a_strict_tool_holds_its_schema(
    tokenizer: Callable[[], Any], *, spelled: bool
) -> None:
    chat = ChatFormat(tokenizer())
    dialect = Dialect(chat)
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    inquiry = Inquiry((Message("user", "q"),), tools=(Tool("put", "", schema, strict=True),))
    grammar = dialect.grammar(inquiry)
    assert grammar is not None
    own = str(chat.tokenizer.tool_call_start)

    def allowed(text: str) -> bool:
        ids = [i for c in text for i in chat.encode(c)] if spelled else chat.encode(text)
        guide = Guide(chat.grammar_tokens(LARGE), grammar, 400)
        try:
            return [guide.take(token) for token in ids] == ids
        except InvalidGrammar:
            return False

    assert allowed("I would call [TOOL_CALL, or <tool_cal.")
    assert not allowed(f"So. {call('put', n='three')}")
    if spelled:
        assert not allowed(f"So. {own}put")
    else:
        assert allowed(f'So. {own}\n{{"name": "put", "arguments": {{"n": 3}}}}')
        assert not allowed(f'So. {own}\n{{"name": "put", "arguments": {{"n": "three"}}}}')


def test_a_call_ends_by_its_own_mark_alone() -> None:
    said = '[TOOL_CALLS]read[ARGS]{"path": "</tool_call>"}'
    with stage(tools_apart, said) as (server, _):
        (made,) = CHAT(server, ASKED).calls

    assert made[2] == {"path": "</tool_call>"}


def test_a_beginning_may_have_words_of_the_question_already() -> None:
    """As where a system prompt stands in the first question, behind the tools."""
    chat = ChatFormat(tools_apart())

    begun = "<s>[AVAILABLE_TOOLS][][/AVAILABLE_TOOLS][INST]Be kind.\n\n"
    assert chat.opening("user", "q", system=begun, answer=True) == f"{begun}q[/INST]"


def test_a_call_is_read_as_told_where_the_template_cannot_write_a_tool() -> None:
    said = call("read", path="a")
    with stage(results_within, said) as (server, _):
        (made,) = CHAT(server, ASKED).calls

    assert made[1:] == ("read", {"path": "a"})
