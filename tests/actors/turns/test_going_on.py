"""An answer that is gone on with: as if it had never stopped."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from conversations import chat_model
from makers import OpenSystem
from puppets import thinking

from kvactors.actors import Agent, AgentSystem, DropOldest, Grammar, InvalidInput, Reply, Sampling
from kvactors.actors.testing import PuppetModel, use_puppet
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.errors import InvalidGrammar

WAIT = 60
# Of half a character at its end, which the rest says whole.
OPEN = "\ufffd"
WHOLE, HALF, REST = 24, 9, 15
WELL = "Well 😀 more to say, 日本 so."
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def of(tokens: int, temperature: float = 0.0, **options: Any) -> Sampling:
    return Sampling(max_tokens=tokens, temperature=temperature, seed=7, **options)


def asked(agent: Agent, *prompt: str, **options: Any) -> Reply:
    reply: Reply = agent.ask(*prompt, **options).get(timeout=WAIT)
    return reply


def goes_on(agent: Agent, sampling: Sampling, **options: Any) -> Reply:
    return asked(agent, sampling=sampling, continue_final_message=True, **options)


def twin(open_system: OpenSystem, folder: Path) -> Agent:
    """An agent "alice" of a system of its own."""
    return open_system(chat_model, store=folder / "twin").spawn("alice")


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("restarts", [False, True])
def test_an_answer_that_was_cut_goes_on_as_if_it_had_never_stopped(
    open_system: OpenSystem, tmp_path: Path, temperature: float, restarts: bool
) -> None:
    whole = asked(twin(open_system, tmp_path), "hello", sampling=of(WHOLE, temperature))
    system = open_system(chat_model, store=tmp_path / "store")
    alice = system.spawn("alice")
    first = asked(alice, "hello", sampling=of(HALF, temperature))
    if restarts:
        system.stop(timeout=WAIT)
        alice = open_system(chat_model, store=tmp_path / "store").spawn("alice")

    rest = goes_on(alice, of(REST, temperature))

    assert first.finish_reason == "length"
    assert first.token_ids + rest.token_ids == whole.token_ids
    assert first.text.rstrip(OPEN) + rest.text == whole.text
    assert [turn.role for turn in alice.transcript().turns] == ["user", "assistant"]
    assert alice.transcript().turns[-1].token_ids == whole.token_ids
    assert rest.usage.prompt_tokens == whole.usage.prompt_tokens + HALF
    assert rest.usage.prefilled_tokens <= (1 if not restarts else rest.usage.prompt_tokens)


def test_its_pieces_add_up_to_what_is_new(open_system: OpenSystem, tmp_path: Path) -> None:
    whole = asked(twin(open_system, tmp_path), "hello", sampling=of(WHOLE))
    alice = open_system(chat_model).spawn("alice")
    first = asked(alice, "hello", sampling=of(HALF))

    with alice.stream(sampling=of(REST), continue_final_message=True) as stream:
        said = "".join(piece.text for piece in stream)

    assert said == stream.reply.text
    assert first.text.rstrip(OPEN) + said == whole.text


def test_the_next_turn_is_the_one_behind_an_answer_that_was_never_cut(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    never = twin(open_system, tmp_path)
    asked(never, "hello", sampling=of(WHOLE))
    then = asked(never, "and on", sampling=of(WHOLE))
    alice = open_system(chat_model).spawn("alice")
    asked(alice, "hello", sampling=of(HALF))
    goes_on(alice, of(REST))

    assert asked(alice, "and on", sampling=of(WHOLE)).token_ids == then.token_ids


def test_messages_may_end_with_the_beginning_of_an_answer(open_system: OpenSystem) -> None:
    system = open_system(chat_model)
    alice, bob = system.spawn("alice"), system.spawn("bob")
    said = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "Well, the"},
    ]

    first = goes_on(alice, of(HALF), messages=said)
    longer = [said[0], {"role": "assistant", "content": "Well, the" + first.text}]
    second = goes_on(alice, of(HALF), messages=longer)
    whole = goes_on(bob, of(2 * HALF), messages=said)

    assert alice.transcript().turns[-1].text == (
        "Well, the" + first.text.rstrip(OPEN) + second.text
    )
    assert first.token_ids + second.token_ids == whole.token_ids
    assert (first.match, second.match, whole.match) == ("extend", "extend", "extend")
    assert second.usage.prefilled_tokens <= 1


def test_an_answer_that_was_changed_is_gone_on_with_from_where_it_was(
    open_system: OpenSystem,
) -> None:
    alice = open_system(chat_model).spawn("alice")
    first = asked(alice, "hello", sampling=of(WHOLE))
    begun = first.text[:5] + "!"
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": begun}]

    rest = goes_on(alice, of(HALF), messages=said, threshold=0.0)

    assert rest.match == "diverge"
    assert alice.transcript().turns[-1].text == begun + rest.text
    assert rest.usage.prefilled_tokens < 5


def test_a_stop_string_that_ended_an_answer_is_taken_back(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    alice = open_system(chat_model).spawn("alice")
    first = asked(alice, "hello", sampling=of(WHOLE))
    stop = first.text[8:10]
    bob = twin(open_system, tmp_path)
    cut = asked(bob, "hello", sampling=of(WHOLE, stop=(stop,)))

    rest = goes_on(bob, of(WHOLE - len(cut.token_ids)))

    assert cut.finish_reason == "stop"
    assert bob.transcript().turns[-1].text == cut.text.rstrip(OPEN) + rest.text


def test_an_end_that_an_answer_came_to_is_taken_back(open_system: OpenSystem) -> None:
    alice = open_system(chat_model).spawn("alice")
    chat = alice.host.info.chat
    (end,) = chat.end_of_turn
    said = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "a cab"},
        {"role": "user", "content": "and"},
    ]
    asked(alice, messages=said, sampling=of(2))

    goes_on(alice, of(3), messages=said[:2], threshold=0.0)

    assert chat.encode_answer("a cab") == list(alice.transcript().turns[1].token_ids[:-3])
    assert end not in alice.transcript().turns[1].token_ids[:-3]


def test_a_request_that_comes_again_is_told_what_it_was_told(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    system = open_system(chat_model, store=tmp_path / "store")
    alice = system.spawn("alice")
    asked(alice, "hello", sampling=of(HALF))
    rest = goes_on(alice, of(REST), request_id="r")
    rest.durable.get(timeout=WAIT)
    system.stop(timeout=WAIT)
    later = open_system(chat_model, store=tmp_path / "store").spawn("alice")

    again = goes_on(later, of(REST), request_id="r")

    assert again.recorded
    assert (again.text, again.token_ids) == (rest.text, rest.token_ids)


@pytest.mark.parametrize("restarts", [False, True])
def test_so_is_it_where_its_question_was_known(tmp_path: Path, restarts: bool) -> None:
    def opened() -> AgentSystem:
        # Nothing of a raw prompt's answer is a thought.
        answers = ["<think>a</think>b", " and <think>x</think>so."]
        puppet = PuppetModel(answers, tokenizer=thinking)
        system = AgentSystem(puppet, store=tmp_path / "store")
        use_puppet(system, puppet)
        return system

    with opened() as system:
        alice = system.spawn("alice")
        asked(alice, "Tell", match=True, sampling=of(WHOLE))
        rest = goes_on(alice, of(WHOLE), request_id="r")
        again = goes_on(alice, of(WHOLE), request_id="r")
    if restarts:
        with opened() as system:
            again = goes_on(system.spawn("alice"), of(WHOLE), request_id="r")

    assert again.recorded
    assert (again.text, again.answer) == (rest.text, rest.answer)
    assert "<think>" in rest.answer


def test_a_form_holds_for_all_of_the_answer(open_system: OpenSystem) -> None:
    alice = open_system(chat_model).spawn("alice")
    form = Grammar.json_schema(PERSON)
    said = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": '{"name": "To'},
    ]

    rest = goes_on(alice, of(60, grammar=form), messages=said)

    assert json.loads('{"name": "To' + rest.text)["name"].startswith("To")
    said[1] = {"role": "assistant", "content": "My name"}
    with pytest.raises(InvalidGrammar, match="begins as this one does"):
        goes_on(alice, of(60, grammar=form), messages=said)


def test_the_oldest_turns_leave_for_what_an_answer_goes_on_with(open_system: OpenSystem) -> None:
    system = open_system(chat_model)
    alice = system.spawn("alice", context_policy=DropOldest(keep_head=0))
    context = system.info.spec.context
    asked(alice, "first " * 9, sampling=of(HALF))
    known = asked(alice, "hello", sampling=of(HALF))
    before = len(alice.transcript().token_ids)

    rest = goes_on(alice, of(context - before + 5))

    assert "first" not in alice.transcript().turns[0].text
    assert alice.transcript().turns[-1].text == known.text.rstrip(OPEN) + rest.text


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"prompt": "hello"}, "give no prompt"),
        ({"sampling": Sampling(choices=("a", "b"))}, "choices are whole answers"),
        ({"continue_final_message": 1}, "continue_final_message"),
        ({"messages": []}, "messages is empty"),
    ],
)
def test_what_cannot_be_gone_on_with_is_refused_at_once(
    open_system: OpenSystem, options: dict[str, Any], rule: str
) -> None:
    alice = open_system(chat_model).spawn("alice")

    with pytest.raises(InvalidInput, match=rule):
        alice.ask(**{"continue_final_message": True, **options})


@pytest.mark.parametrize(
    "messages", [None, [{"role": "user", "content": "hi"}], [{"role": "assistant", "content": "x"}]]
)
def test_without_an_answer_there_is_nothing_to_go_on_with(
    open_system: OpenSystem, messages: Any
) -> None:
    alice = open_system(chat_model).spawn("alice")

    with pytest.raises(InvalidInput, match="no answer to go on with"):
        goes_on(alice, of(4), messages=messages)
    assert not alice.transcript().turns


@pytest.mark.parametrize("cut", range(1, 21))
def test_a_character_that_was_cut_is_told_whole(cut: int) -> None:
    class InTwo(PuppetModel):
        """Says so many tokens of it, then the others."""

        said = 0

        def answer(self, chat: ChatFormat, _said: Iterable[int]) -> tuple[int, ...]:
            self.said += 1
            ids = chat.encode_answer(WELL)
            return (*ids[cut * (self.said > 1) :], *chat.end_of_turn)

    system = AgentSystem(puppet := InTwo([], tokenizer=thinking), store=False)
    use_puppet(system, puppet)
    with system:
        alice = system.spawn("alice")
        first = asked(alice, "hello", sampling=of(cut))
        with alice.stream(sampling=of(40), continue_final_message=True) as stream:
            said = "".join(piece.text for piece in stream)

    assert stream.reply.text == said
    assert first.text.rstrip(OPEN) + said == WELL
