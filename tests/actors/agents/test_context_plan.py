"""What is left of a conversation at the end of its context is one that the template would make."""

from dataclasses import replace

import pytest
from call_forms import channels
from small_tokenizers import BEGINS, chat_format, raw_turn, starting

from kvactors.actors import (
    DropOldest,
    Sampling,
    Summarize,
)
from kvactors.actors.agents.planner import Planner, Running
from kvactors.actors.agents.request_builder import make_draft
from kvactors.actors.turns.messages_agent import Ask
from kvactors.actors.turns.options import TurnOptions
from kvactors.actors.turns.prompt import NewText, NewTokenIds, WholeConversation
from kvactors.actors.turns.ticket import Ticket
from kvactors.core.cache.spec import LayerSpec, ModelCacheSpec
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.context_policy import ContextPolicy
from kvactors.core.conversation.transcript import Transcript, as_told
from kvactors.core.model.info import ModelInfo
from kvactors.core.schedule.events import Finished
from kvactors.core.schedule.request import Request

SPEC = ModelCacheSpec((LayerSpec("full", 1, 64, 4, 64, "float32"),), 10_000, 300)


def planned(
    transcript: Transcript, policy: ContextPolicy, summary: str, spec: ModelCacheSpec = SPEC
) -> tuple[Running, Request]:
    """What runs for a question, once its summary, if it has one made, is there."""
    planner = Planner("a", transcript, spec, policy, isolated=False)
    asked = TurnOptions(NewText("be"), Sampling(max_tokens=8))
    question = Ask(Ticket.begin("a", streamed=False), asked)
    running, request = planner.first(question)
    if running.gap is None:
        return running, request
    assert request.passing
    request.tokens += transcript.chat.encode(summary)
    return planner.after_summary(running, Finished(request, "stop", 0.0, ()))


@pytest.mark.parametrize("cut", [False, True], ids=["the first was cut", "the others were cut"])
@pytest.mark.parametrize("keep_head", [0, 1, 2, 3])
@pytest.mark.parametrize("policy", [DropOldest, Summarize], ids=["drop", "summarize"])
def test_what_is_left_is_a_well_formed_conversation_with_its_system_prompt(
    policy: type[DropOldest], keep_head: int, cut: bool
) -> None:
    transcript = Transcript(chat_format("bytes", "chatml"), "test", "Be calm.")
    for number in range(9):
        question = transcript.render("user", f"Hello world {number}, hello again", answer=True)
        # The last of those that stay in front ended otherwise than the last that goes.
        ended = cut == (number > 0)
        answer = transcript.given_answer("a cab", "length" if ended else "stop")
        transcript.extend([question, answer])

    chosen = policy(keep_head=keep_head)
    if isinstance(chosen, Summarize):
        chosen = replace(chosen, max_tokens=16, prompt="abc")
    running, request = planned(transcript, chosen, "abc")

    draft = running.draft
    # A question and its answer go together.
    assert draft.keep == keep_head + keep_head % 2
    turns = [*transcript.turns[: draft.keep], *draft.turns]
    assert request.tokens == [token for turn in turns for token in turn.token_ids]
    assert len(request.tokens) + 8 <= SPEC.context
    whole_text = "".join(turn.rendered for turn in turns)
    assert transcript.chat.decode(request.tokens) == whole_text
    parts = whole_text.split("<|start|>")[1:]
    assert all(part.endswith("<|end|>\n") for part in parts[:-1])
    assert parts[0] == "system\nBe calm.<|end|>\n"
    assert parts[-2:] == ["user\nbe<|end|>\n", "assistant\n"]
    said = [part for part in parts if "Summary of our conversation so far: abc" in part]
    assert len(said) == (policy is Summarize)
    assert sum(turn.stands_for or 1 for turn in turns[:-1]) == (
        18 if policy is Summarize else len(turns) - 1
    )


def test_a_summary_is_summed_up_in_its_turn() -> None:
    transcript = Transcript(chat_format("bytes", "chatml"), "test")
    policy, said, spans = Summarize(keep_head=0, max_tokens=16, prompt="abc"), 0, list[int]()
    for _ in range(40):
        running, _ = planned(transcript, policy, "abc")
        answer = transcript.given_answer("Hello world, hello again")
        record = transcript.extend([*running.draft.turns, answer], running.draft.keep)
        said += 2
        if "stands_for" in record["turns"][0]:
            spans.append(record["turns"][0]["stands_for"])
        assert sum(turn.stands_for or 1 for turn in transcript.turns) == said

    assert len(spans) > 3
    assert spans == sorted(spans)


@pytest.mark.parametrize("summary", ["", "abc"], ids=["drop", "summarize"])
def test_what_one_turn_was_told_of_the_beginning_is_not_told_to_those_that_are_left(
    summary: str,
) -> None:
    high, chat = {"reasoning_effort": "high"}, ChatFormat(channels())
    transcript = Transcript(chat, "test")
    for number in range(9):
        asked = as_told(transcript, high if number in (0, 5, 6, 7, 8) else None)
        question = asked.render("user", "Hello world, hello again", answer=True)
        transcript.extend([question, transcript.given_answer("a cab")])
    chosen = Summarize(keep_head=0, max_tokens=16, prompt="abc") if summary else DropOldest(0)
    spec = replace(SPEC, context=len(transcript.token_ids) * 3 // 4)
    told = as_told(transcript, high if summary else None)

    running, request = planned(told, chosen, summary, spec)

    first, *others = running.draft.turns
    assert running.draft.keep == 0, "nothing had to leave"
    assert "Reasoning: medium" in first.rendered
    assert "Reasoning: high" not in chat.decode(request.tokens)
    assert first.told in (None, {})
    assert others[-1].told == (high if summary else None)


@pytest.mark.parametrize("edited", [False, True])
def test_a_question_that_is_answered_again_stays_with_its_answer(edited: bool) -> None:
    chat = chat_format("bytes", "chatml")
    transcript, messages = Transcript(chat, "test"), list[tuple[str, str]]()
    for text in ("be", "Hello world, hello again", "Hello calm world, hello again"):
        answer = transcript.given_answer("a cab", "length")
        transcript.extend([transcript.render("user", text, answer=True), answer])
        messages += [("user", text), ("assistant", answer.text)]
    messages = (
        [*messages[:-1], ("assistant", "decade"), ("user", "be")] if edited else messages[:-1]
    )
    spec = replace(SPEC, context=len(transcript.token_ids) + 30)
    planner = Planner("a", transcript, spec, DropOldest(keep_head=0, fill=0.3), isolated=False)
    asked = TurnOptions(WholeConversation(tuple(messages), 0.8), Sampling(max_tokens=45))

    draft = planner.first(Ask(Ticket.begin("a", streamed=False), asked))[0].draft

    turns = [*transcript.turns[: draft.keep], *draft.turns]
    assert draft.keep < 5, "nothing had to leave"
    assert "Hello calm world, hello again" in [turn.text for turn in turns]


@pytest.mark.parametrize("room", [0, -1], ids=["fits", "one token too many"])
@pytest.mark.parametrize("max_tokens", [256, 1])
def test_turns_leave_where_the_longest_choice_does_not_fit_whatever_max_tokens_is(
    max_tokens: int, room: int
) -> None:
    chat = chat_format("bytes", "chatml")
    transcript = Transcript(chat, "test")
    for text in ("Hello world, hello again", "be"):
        transcript.extend([transcript.render("user", text, answer=True)])
        transcript.extend([transcript.given_answer("a cab")])
    question = transcript.render("user", "be", answer=True)
    longest = (*chat.encode_answer("Hello calm world"), *chat.end_of_turn)
    needed = len(transcript.token_ids) + len(question.token_ids) + len(longest)
    spec = replace(SPEC, context=needed + room)
    planner = Planner("a", transcript, spec, DropOldest(keep_head=0), isolated=False)
    choosing = Sampling(max_tokens=max_tokens, choices=("be", "Hello calm world"))
    asked = TurnOptions(NewText("be"), choosing)

    running, request = planner.first(Ask(Ticket.begin("a", streamed=False), asked))

    assert running.draft.keep == (4 if room == 0 else 0)
    assert longest in request.choices
    assert len(request.tokens) + len(longest) <= spec.context


@pytest.mark.parametrize("raw", [False, True])
@pytest.mark.parametrize("policy", [DropOldest, Summarize])
def test_what_comes_first_now_begins_as_the_tokenizer_begins_texts(
    policy: type[DropOldest], raw: bool
) -> None:
    chat = starting()
    transcript = Transcript(chat, "test")
    for _ in range(60):
        heard = transcript.render("user", "Hello world, hello again", answer=False)
        transcript.extend([raw_turn(chat, "Hello world, hello again") if raw else heard])

    running, request = planned(transcript, policy(keep_head=0), "abc")

    assert running.draft.keep == 0, "nothing had to leave"
    assert (request.tokens[0], request.tokens.count(BEGINS)) == (BEGINS, 1)


def test_token_ids_of_another_tokenizer_begin_as_this_one_begins_texts() -> None:
    chat, other = starting(), chat_format("unigram")
    info = ModelInfo("other", other, SPEC, "", "", "other", "", 0)
    ids = NewTokenIds(tuple(other.encode("Hello world")), info)
    asked = Ask(Ticket.begin("a", streamed=False), TurnOptions(ids, Sampling(max_tokens=8)))

    draft = make_draft(Transcript(chat, "test"), asked)

    assert list(draft.turns[0].token_ids) == chat.tokenizer.encode("Hello world")


def test_a_summary_is_as_urgent_as_its_turn_and_shares_with_nobody() -> None:
    transcript = Transcript(chat_format("bytes", "chatml"), "test", "Be calm. " * 20)
    for number in range(9):
        question = transcript.render("user", f"Hello world {number}, hello again", answer=True)
        transcript.extend([question, transcript.given_answer("a cab")])
    policy = Summarize(max_tokens=16, prompt="abc", keep_head=0)
    spec = replace(SPEC, context=len(transcript.token_ids))
    asked = TurnOptions(NewText("be"), Sampling(max_tokens=8), priority=5, tenant="key")
    asking = Ask(Ticket.begin("a", streamed=False), asked)

    running, request = Planner("a", transcript, spec, policy, isolated=True).first(asking)

    assert running.gap is not None
    assert request.passing
    assert (request.tenant, request.shared, request.priority) == (None, 0, 5)
