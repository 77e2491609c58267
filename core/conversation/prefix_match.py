"""Prefix matching by characters, immune to how a tokenizer splits text [write-up, 3.3].
Pure: any thread.

Token ids of the same text change with what stands before and after it; characters do not.
A whole conversation, as messages or as one text, is compared with an agent's transcript turn
by turn, then by characters inside the first turn that differs, down to the last token that
lies within what matches: a token is kept only if all of its characters match. The outcome is
a draft: the turns that are kept, and those that follow before the model answers.

    remembered q1 a1 q2 a2, asked           match     kept           appended
    q1 a1 q2 a2                             exact     q1 a1 q2       nothing: answered again
    q1 a1 q2 a2 q3                          extend    q1 a1 q2 a2    q3
    q1 a1 q2'                               diverge   q1 a1          q2', its first tokens q2's
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.conversation.rewind import begun_answer, without_end
from kvactors.core.conversation.token_text import NEAR
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.conversation.turn import UNBEGUN, Turn
from kvactors.core.errors import InvalidInput

__all__ = [
    "THRESHOLD",
    "Draft",
    "MatchKind",
    "Message",
    "continue_behind",
    "conversation_text",
    "match_messages",
    "match_text",
]

MatchKind = Literal["exact", "extend", "diverge"]
Message = tuple[str, str]

THRESHOLD = 0.8


@dataclass(frozen=True, slots=True)
class Draft:
    """A transcript as it will be when the model answers: its first `keep` turns, then `turns`.

    `match` is None for an ordinary turn. `system_prompt` is what a conversation that starts
    again begins with; unless `keep` is 0 it is the transcript's own. `begun`: what the answer goes
    on with.
    """

    keep: int
    turns: tuple[Turn, ...]
    match: MatchKind | None = None
    system_prompt: str | None = None
    begun: Turn = UNBEGUN


def match_text(transcript: Transcript, prompt: str, threshold: float = THRESHOLD) -> Draft:
    """Compare a prompt that is the whole text with the transcript's rendered text.

    What an answer ended with and its asker never saw, the end of the turn or a stop string,
    may be left out. The new text is tokenized without a template. A turn is cut in the middle where
    at least the share `threshold` of it is kept.
    """
    turns, chat, system = transcript.turns, transcript.chat, transcript.system_prompt
    place = index = 0
    for turn in turns:
        seen = turn.rendered.removesuffix(turn.hidden)
        if not prompt.startswith(seen, place):
            break
        place += len(seen)
        if prompt.startswith(turn.hidden, place):
            place += len(turn.hidden)
        index += 1
    inside = common_prefix(turns[index].rendered, prompt[place:]) if index < len(turns) else 0
    kind = _kind(turns, index, inside, more=place < len(prompt))
    if kind == "exact":
        return Draft(_unanswered(turns), (), kind, system)
    if not _enough(turns, index, inside, threshold):
        return Draft(0, (_raw(prompt, chat.encode_whole(prompt)),), kind, system)
    if not inside and place == len(prompt):
        # It ends where a turn does: an answer there is given again.
        return Draft(_unanswered(turns[:index]) if index else 0, (), kind, system)
    appended: list[Turn] = []
    if inside:
        head = transcript.head(turns[index], inside)
        appended += [head] if head.token_ids else []
        place += len(head.rendered)
    if rest := prompt[place:]:
        encode = chat.encode_rest if index or place else chat.encode_whole
        appended.append(_raw(rest, encode(rest)))
    return Draft(index, tuple(appended), kind, system)


def match_messages(
    transcript: Transcript,
    messages: Sequence[Message],
    threshold: float = THRESHOLD,
    *,
    goes_on: bool = False,
) -> Draft:
    """Compare a whole conversation, (role, text) by (role, text) of `messages`, with the
    transcript; `threshold` as in `match_text`. `goes_on`: with the answer that it ends with;
    without messages, with the transcript's own.

    A first message with the role "system" is compared with the agent's system prompt; where
    there is none, the agent's own stands. Raises InvalidInput if the conversation leaves the
    assistant nothing to answer, or to go on with.
    """
    turns = transcript.turns
    system: str | None = transcript.system_prompt
    said: Sequence[Message] = [(turn.role, turn.text) for turn in turns]
    if messages or not goes_on:
        system, said = _system_and_rest(messages, transcript)
    comparable = system == transcript.system_prompt or not turns
    same = _equal_turns(turns, said) if comparable else 0
    if not goes_on and same == len(turns) == len(said) and turns[-1].is_answer:
        if _leads_on(transcript, said, same - 1):
            return Draft(_unanswered(turns), (), "exact", system)
        # It was asked for an answer in another way.
        said, same = said[:-1], same - 1
    if not goes_on and said[-1][0] == "assistant":
        raise InvalidInput(
            f"the last of {len(messages)} messages is the assistant's, and the agent remembers "
            "another conversation: end with the message to answer"
        )
    target = Transcript(transcript.chat, transcript.tokenizer_id, system)
    target.turns = turns[:same]
    if same and not _leads_on(transcript, said, same):
        same -= 1
        target.turns.pop()
    inside = 0
    if same < len(said):
        rendered = _rendering(target, said)
        if same < len(turns):
            inside = common_prefix(turns[same].rendered, rendered)
    kind = _kind(turns, same, inside, more=goes_on or same < len(said))
    if not _enough(turns, same, inside, threshold):
        same = inside = 0
        target.turns = []
    if inside:
        target.turns.append(_merged(target, said, transcript.head(turns[same], inside)))
    while len(target.turns) < len(said):
        target.turns.append(_merged(target, said, None))
    begun = UNBEGUN
    if goes_on:
        if not target.turns or not target.turns[-1].is_answer:
            raise InvalidInput(
                "there is no answer to go on with: end with one that stands behind what it answers"
            )
        begun = without_end(target, target.turns.pop())
        same = min(same, len(target.turns))
    return Draft(same, tuple(target.turns[same:]), kind, system, begun)


def continue_behind(
    transcript: Transcript,
    keep: int,
    messages: Sequence[Message],
    system: str | None,
    *,
    begun: str = "",
) -> Draft:
    """`messages` behind the first `keep` turns of the transcript, whatever those say; what comes
    after them is forgotten. `system` stands where nothing is kept; the answer goes on with what is
    `begun`. Raises InvalidInput if there are fewer turns, or nothing to answer."""
    turns = transcript.turns
    if keep > len(turns):
        raise InvalidInput(f"{keep} turns are to be kept, and the agent remembers {len(turns)}")
    target = Transcript(transcript.chat, transcript.tokenizer_id, system)
    if keep:
        target.system_prompt = transcript.system_prompt
    target.turns = turns[:keep]
    said = [*((turn.role, turn.text) for turn in target.turns), *messages]
    if not said or said[-1][0] == "assistant":
        raise InvalidInput("there is nothing to answer: end with the message to answer")
    answer = begun_answer(transcript, len(turns) if messages else keep, begun)
    if keep and not _leads_on(transcript, said, keep):
        keep -= 1
        target.turns.pop()
    while len(target.turns) < len(said):
        target.turns.append(_merged(target, said, None))
    kind: MatchKind = "extend" if keep == len(turns) else "diverge"
    return Draft(keep, tuple(target.turns[keep:]), kind, target.system_prompt, answer)


def conversation_text(chat: ChatFormat, messages: Sequence[Message], system: str | None) -> str:
    """What an agent that begins with a `system` prompt is told of `messages`, in the words of
    `chat`, until it answers. Of all this only the ends of answers are tokenized. Raises
    TemplateError."""
    target = Transcript(chat, "", system)
    for index, (role, text) in enumerate(messages):
        if _answers(target, role):
            shown, ended = chat.answer_text(text), chat.written_end(text)
            ids = (*chat.encode(shown[-NEAR:]), *ended)
            turn = Turn(role, text, ids, shown + chat.decode(ended), finish="stop")
        else:
            rendered = target.rendering(role, text, answer=_wants_answer(messages, index))
            turn = Turn(role, text, (), rendered)
        target.turns.append(turn)
    return "".join(turn.rendered for turn in target.turns)


def _system_and_rest(
    messages: Sequence[Message], transcript: Transcript
) -> tuple[str | None, Sequence[Message]]:
    system, said = transcript.system_prompt, messages
    if said and said[0][0] == "system":
        system, said = said[0][1], said[1:]
    if not said:
        raise InvalidInput(f"there is nothing to answer in {len(messages)} messages")
    return system, said


def _equal_turns(turns: Sequence[Turn], said: Sequence[Message]) -> int:
    pairs = enumerate(zip(turns, said, strict=False))
    differing = (i for i, (turn, message) in pairs if (turn.role, turn.text) != message)
    return next(differing, min(len(turns), len(said)))


def _leads_on(transcript: Transcript, said: Sequence[Message], same: int) -> bool:
    """Whether the last turn that is the same was rendered for what follows it now: a prompt
    ends differently when the assistant is to answer it."""
    turns, last = transcript.turns, transcript.turns[same - 1]
    if last.raw or last.role == "assistant":
        return True
    answer = _wants_answer(said, same - 1)
    asks = last.rendered.endswith(transcript.chat.asks)
    if answer and asks and same < len(turns) and turns[same].is_answer:
        return True
    before = turns[: same - 1]
    return transcript.rendering(last.role, last.text, answer=answer, after=before) == last.rendered


def _wants_answer(said: Sequence[Message], index: int) -> bool:
    return index + 1 == len(said) or said[index + 1][0] == "assistant"


def _answers(target: Transcript, role: str) -> bool:
    """Whether a message is the answer to the turn before it, which was rendered for one."""
    return role == "assistant" and bool(target.turns) and target.turns[-1].role != "assistant"


def _rendering(target: Transcript, said: Sequence[Message]) -> str:
    """The text of the next message behind the turns of `target`, but for an answer's end."""
    index = len(target.turns)
    role, text = said[index]
    if _answers(target, role):
        return target.chat.answer_text(text)
    return target.rendering(role, text, answer=_wants_answer(said, index))


def _merged(target: Transcript, said: Sequence[Message], head: Turn | None) -> Turn:
    """The next message as a turn; `head` has the tokens of its beginning, if they are known."""
    index = len(target.turns)
    role, text = said[index]
    if head is None or not head.token_ids:
        if _answers(target, role):
            return target.given_answer(text)
        return target.render(role, text, answer=_wants_answer(said, index))
    rendered = _rendering(target, said)
    rest = rendered[len(head.rendered) :]
    ids = (*head.token_ids, *target.chat.encode_rest(rest))
    if not _answers(target, role):
        asked, more = _wants_answer(said, index), target.chat.more
        return Turn(role, text, ids, rendered, asked=asked, told=more)
    ended = target.chat.written_end(text)
    return Turn(role, text, (*ids, *ended), rendered + target.chat.decode(ended), finish="stop")


def _kind(turns: Sequence[Turn], index: int, inside: int, *, more: bool) -> MatchKind:
    """`index` turns match, `inside` characters of the next; `more`: the prompt goes on."""
    if _matched(turns, index, inside) < _matched(turns, len(turns), 0):
        return "diverge"
    return "extend" if more else "exact"


def _enough(turns: Sequence[Turn], index: int, inside: int, threshold: float) -> bool:
    return _matched(turns, index, inside) >= threshold * _matched(turns, len(turns), 0)


def _matched(turns: Sequence[Turn], index: int, inside: int) -> int:
    return sum(len(turn.rendered) for turn in turns[:index]) + inside


def _unanswered(turns: Sequence[Turn]) -> int:
    """How many turns there are before the last answer."""
    return len(turns) - 1 if turns[-1].is_answer else len(turns)


def _raw(text: str, token_ids: Sequence[int]) -> Turn:
    return Turn("user", text, tuple(token_ids), text, raw=True)
