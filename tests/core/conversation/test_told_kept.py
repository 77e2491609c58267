"""What a turn told the chat template is kept with it, and is its own."""

from typing import Any

import pytest
from call_forms import HYBRID, hybrid, tokenizer_with

from kvactors.actors import AgentSystem
from kvactors.actors.testing import PuppetModel, use_puppet
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.records import check_records
from kvactors.core.conversation.transcript import Transcript, as_told
from kvactors.core.conversation.turn import MOST_TOLD, check_template_kwargs
from kvactors.core.errors import InvalidConfig

MARKS, ENDS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"], ["<|im_end|>"]
WAIT = 60


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat(hybrid())


def test_what_a_turn_told_the_template_is_in_its_record(chat: ChatFormat) -> None:
    told = {"enable_thinking": False, "mood": "calm"}
    transcript = Transcript(chat.told(told), "t")
    asked = transcript.render("user", "q", answer=True)
    record = transcript.extend([asked, transcript.answer(chat.encode("a"), "length")])

    check_records([record])
    (again, _) = Transcript.restore(chat, "t", [record]).turns
    assert again.told == told
    assert "template_kwargs" not in record["turns"][1]


@pytest.mark.parametrize(
    "wrong", [5, {1: 2}, {"mood": b"x"}, {"mood": {1: 2, "a": 3}}, {"mood": "x" * MOST_TOLD}]
)
def test_a_record_that_tells_it_what_no_turn_may_is_none(chat: ChatFormat, wrong: Any) -> None:
    transcript = Transcript(chat, "t")
    record = transcript.extend([transcript.render("user", "q", answer=False)])
    record["turns"][0]["template_kwargs"] = wrong

    with pytest.raises(ValueError, match="record 0"):
        check_records([record])


@pytest.mark.parametrize("number", [2**64, -(2**63) - 1])
def test_what_is_told_has_whole_numbers_that_a_ledger_keeps(number: int) -> None:
    check_template_kwargs({"mood": [2**64 - 1, -(2**63)]})

    with pytest.raises(InvalidConfig, match="64 bits"):
        check_template_kwargs({"mood": [{"deep": number}]})


def test_what_a_caller_does_to_what_a_turn_was_told_is_told_to_no_other() -> None:
    chat = ChatFormat(tokenizer_with(f"{HYBRID}{{{{ moods }}}}", MARKS, ENDS))
    first, second = (Transcript(chat.told({"moods": ["x"]}), "t") for _ in range(2))
    told = first.render("user", "q", answer=True).told
    assert told
    told["moods"].append("more")

    turn = second.render("user", "q", answer=True)
    assert turn.told == {"moods": ["x"]}
    assert "more" not in turn.rendered + chat.told({"moods": ["x"]}).asks


def test_another_tokenizer_is_told_what_the_turn_was(chat: ChatFormat) -> None:
    calm = {"mood": "calm"}
    transcript = Transcript(chat.told(calm), "t")
    asked = transcript.render("user", "q", answer=True)
    transcript.extend([asked, transcript.given_answer("a")])

    other = as_told(transcript, None).under(ChatFormat(hybrid()), "another")

    assert (other.turns[0].rendered, other.turns[0].told) == (asked.rendered, calm)
    # One whose template refuses that is told nothing.
    strict = tokenizer_with(HYBRID.replace("'calm'", "'wild'"), MARKS, ENDS)
    assert as_told(transcript, None).under(ChatFormat(strict), "third").turns[0].told is None


def test_a_reply_that_comes_again_is_read_as_its_own_turn_was_asked() -> None:
    template = f"{HYBRID}{{% if add_generation_prompt and not quiet %}}<think>\n{{% endif %}}"
    puppet = PuppetModel(["So."], tokenizer=lambda: tokenizer_with(template, MARKS, ENDS))
    system = AgentSystem(puppet, store=False)
    use_puppet(system, puppet)
    with system:
        agent = system.spawn("a")
        first = agent.ask("q", request_id="one", template_kwargs={"quiet": True}).get(timeout=WAIT)
        again = agent.ask("q", request_id="one").get(timeout=WAIT)

    assert (again.text, again.answer, again.recorded) == ("So.", first.answer, True)
    assert first.answer == "So."
