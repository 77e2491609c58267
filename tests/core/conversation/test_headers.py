"""Answers of messages with a header each, as gpt-oss has them, in a transcript and in a system."""

from collections.abc import Iterator
from typing import Any

import pytest
from call_forms import channels, talk

from kvactors.actors import AgentSystem, Sampling, Summarize
from kvactors.actors.testing import PuppetModel, use_puppet
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.tool_format import called, headers, with_tools
from kvactors.core.conversation.transcript import Transcript

NEXT = "<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
THINKS = f"<|channel|>analysis<|message|>Is it?{NEXT}"
CALLS = "<|channel|>commentary to=functions.read <|constrain|>json<|message|>{}"


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(channels())


def behind(chat: ChatFormat, transcript: Transcript, role: str = "user") -> str:
    """The whole conversation behind the system prompt, with one more question."""
    ids = [*transcript.token_ids, *transcript.render(role, "so", answer=True).token_ids]
    return chat.decode(ids).partition("Be kind.\n\n<|end|>")[2]


def test_a_conversation_is_what_the_template_makes_of_it(chat: ChatFormat) -> None:
    transcript = talk(
        chat, ("user", "q1", f"{FINAL}a1<|return|>"), ("user", "q2", f"{FINAL}a2<|return|>")
    )
    told = [("system", "Be kind."), ("user", "q1"), ("assistant", "a1"), ("user", "q2")]
    told += [("assistant", "a2"), ("user", "so")]

    whole = chat.render([{"role": r, "content": c} for r, c in told], answer=True)
    assert behind(chat, transcript) == whole.partition("Be kind.\n\n<|end|>")[2]


@pytest.mark.parametrize(
    ("said", "finish"),
    [("a<|return|>", "stop"), ("a", "length"), ("a", "stop"), ("a", "cancelled")],
)
def test_what_follows_an_answer_stands_behind_the_end_that_history_has(
    chat: ChatFormat, said: str, finish: str
) -> None:
    transcript = talk(chat, ("user", "q", f"{THINKS}{FINAL}{said}"), finish=finish)

    expected = f"{THINKS}{FINAL}a<|end|><|start|>user<|message|>so<|end|><|start|>assistant"
    assert behind(chat, transcript).endswith(f"<|start|>assistant{expected}")
    assert "<|return|>" not in transcript.turns[-1].rendered
    assert transcript.turns[-1].text == f"{THINKS}{FINAL}a"


def test_an_answer_that_was_cut_behind_a_message_lacks_no_end(chat: ChatFormat) -> None:
    transcript = talk(chat, ("user", "q", THINKS[: -len("<|start|>assistant")]), finish="length")

    assert behind(chat, transcript).count("Is it?<|end|><|start|>user") == 1


@pytest.mark.parametrize("end", ["<|call|>", ""])
def test_a_result_stands_behind_the_call_and_names_its_tool(chat: ChatFormat, end: str) -> None:
    transcript = talk(chat, ("user", "to=nobody", f"{CALLS}{end}"))

    result = '<|start|>functions.read to=assistant<|channel|>commentary<|message|>"so"<|end|>'
    assert behind(chat, transcript, "tool").endswith(f"{CALLS}<|call|>{result}<|start|>assistant")


def test_a_result_names_the_tool_that_was_called_before_it_if_others_were_told_meanwhile(
    chat: ChatFormat,
) -> None:
    transcript = talk(chat, ("user", "q", f"{CALLS}<|call|>"))
    transcript.extend([transcript.render("tool", "first", answer=False)])

    assert '<|start|>functions.read to=assistant<|channel|>commentary<|message|>"so"' in (
        behind(chat, transcript, "tool")
    )


def test_an_answer_that_is_known_as_text_has_the_header_of_history(chat: ChatFormat) -> None:
    transcript = Transcript(chat, "t", "Be kind.")
    for text in ("plain", f"{THINKS}{FINAL}own", f"{CALLS}<|call|>"):
        prompt = transcript.render("user", "q", answer=True)
        transcript.extend([prompt, transcript.given_answer(text)])

    said = behind(chat, transcript).split("<|start|>user<|message|>q<|end|><|start|>assistant")
    assert said[:3] == ["", f"{FINAL}plain<|end|>", f"{THINKS}{FINAL}own<|end|>"]
    assert said[3].startswith(f"{CALLS}<|call|><|start|>user")


def test_what_was_observed_ends_as_in_history(chat: ChatFormat) -> None:
    transcript = talk(chat, ("user", "q", f"{FINAL}a<|return|>"))
    transcript.extend([transcript.render("assistant", "seen", answer=False)])

    assert f"<|start|>assistant{FINAL}seen<|end|><|start|>user" in behind(chat, transcript)


def test_only_headers_say_who_is_called() -> None:
    text = f'{THINKS}{FINAL}say to=bob<|message|>{NEXT}{CALLS}{{"x": "to=eve<|message|>"}}'

    assert [called(header) for header in headers(text)] == ["", "", "read"]


def test_tools_that_are_written_in_two_places_stand_in_the_system_prompt(chat: ChatFormat) -> None:
    tool = {"name": "read", "description": "Reads.", "parameters": {"type": "object"}}

    written = with_tools(chat, "Be kind.", [{"type": "function", "function": tool}])

    assert written is not None
    assert written.startswith("Be kind.\n\n# Tools\n\n## functions\n\nnamespace functions {")
    assert written.endswith("}\n\nCalls go to the commentary channel: 'functions'.")


@pytest.fixture
def system(tmp_path: Any) -> Iterator[AgentSystem]:
    puppet = PuppetModel(lambda _: f"{THINKS}{FINAL}It is.", tokenizer=channels)
    system = AgentSystem(puppet, store=tmp_path)
    use_puppet(system, puppet)
    with system:
        yield system


def test_only_what_is_new_is_computed_behind_an_answer(system: AgentSystem) -> None:
    agent = system.spawn("alice", "Be kind.")
    first, second = agent.ask("q1").get(), agent.ask("q2").get()

    assert first.finish_reason == second.finish_reason == "stop"
    known = first.usage.prompt_tokens + len(first.token_ids) - 1
    assert second.usage.reused_tokens == known


def test_an_answer_that_is_given_again_is_what_was_said(system: AgentSystem) -> None:
    agent = system.spawn("bob")
    first = agent.ask("q", request_id="r").get()
    stream = agent.stream("q", request_id="r")
    again = "".join(piece.text for piece in stream)

    assert again == first.text == stream.reply.text
    assert stream.reply.token_ids == first.token_ids
    assert stream.reply.recorded


def test_choices_are_judged_behind_the_header(tmp_path: Any) -> None:
    with AgentSystem(PuppetModel((), tokenizer=channels), store=False) as system:
        agent = system.spawn("carol")
        reply = agent.ask("q", sampling=Sampling(choices=("yes", "no"))).get()
        text = agent.transcript().text

    assert reply.text in ("yes", "no")
    assert text.endswith(f"<|start|>assistant{FINAL}{reply.text}<|end|>")


def test_a_call_may_follow_words_of_the_assistant(chat: ChatFormat) -> None:
    transcript = talk(chat, ("user", "q", f"{FINAL}I look.<|return|>"))
    transcript.extend([transcript.render("assistant", f"{CALLS}<|call|>", answer=False)])

    assert f"I look.<|end|><|start|>assistant{CALLS}<|call|><|start|>functions.read" in (
        behind(chat, transcript, "tool")
    )


def test_who_begins_with_an_answer_ends_it_as_in_history(chat: ChatFormat) -> None:
    transcript = Transcript(chat, "t", "Be kind.")
    transcript.extend([transcript.render("assistant", "Hi", answer=False)])

    assert f"{FINAL}Hi<|end|><|start|>user<|message|>so" in behind(chat, transcript)


def test_an_answer_that_said_nothing_has_a_header(chat: ChatFormat) -> None:
    transcript = talk(chat, ("user", "q", ""), finish="cancelled")

    assert f"<|start|>assistant{FINAL}<|end|><|start|>user" in behind(chat, transcript)


def test_a_summary_is_what_the_last_message_says(tmp_path: Any) -> None:
    says = iter([f"{THINKS}{FINAL}a1", f"{THINKS}{FINAL}a2", f"{THINKS}{FINAL}In short.", "a3"])
    puppet = PuppetModel(lambda _: next(says), tokenizer=channels)
    system = AgentSystem(puppet, store=False, context=900)
    use_puppet(system, puppet)
    with system:
        agent = system.spawn("dan", context_policy=Summarize(keep_head=0, max_tokens=60))
        for question in ("x" * 200, "y" * 200):
            agent.ask(question, sampling=Sampling(max_tokens=60)).get()
        agent.ask("z" * 200, sampling=Sampling(max_tokens=120)).get()
        told = agent.transcript().turns[0]

    assert told.stands_for
    assert told.text.endswith("In short.")
    assert "<|" not in told.text
