"""Where a rewind cuts a transcript, and an answer that is gone on with. Moves no bytes: the KV
beyond the cut is left over.

Pure: any thread.
"""

from collections.abc import Sequence
from dataclasses import replace

from kvactors.core.conversation.transcript import Transcript
from kvactors.core.conversation.turn import UNBEGUN, Turn
from kvactors.core.errors import RewindOutOfRange

__all__ = ["begun_answer", "cut_at_token", "cut_turns", "without_end"]


def cut_turns(turns: Sequence[Turn], count: int) -> int:
    """How many of these turns are left without the last `count` exchanges.

    An exchange is a prompt with its answer, or a prompt that has none (something observed).
    Raises RewindOutOfRange if there are fewer.
    """
    keep = len(turns)
    for gone in range(count):
        if keep == 0:
            raise RewindOutOfRange(f"cannot rewind {count} turns: the agent remembers {gone}")
        answered = keep > 1 and turns[keep - 1].is_answer and not turns[keep - 2].is_answer
        keep -= 2 if answered else 1
    return keep


def cut_at_token(transcript: Transcript, tokens: int) -> tuple[int, tuple[Turn, ...]]:
    """The turns that lie within the first `tokens` tokens, and what is left of the next one.

    Raises RewindOutOfRange if there are fewer tokens.
    """
    left = tokens
    for keep, turn in enumerate(transcript.turns):
        if left < len(turn.token_ids):
            return keep, (transcript.cut(turn, left),) if left else ()
        left -= len(turn.token_ids)
    if left:
        raise RewindOutOfRange(
            f"cannot rewind to token {tokens}: the agent remembers {tokens - left}"
        )
    return len(transcript.turns), ()


def without_end(transcript: Transcript, answer: Turn) -> Turn:
    """What the model said of an `answer`, so that it can go on there: without the end of its turn
    or a stop string. Its tokens are those of the answer as far as they can be."""
    chat, shown = transcript.chat, answer.rendered.removesuffix(answer.hidden)
    ended = len(answer.token_ids)
    while ended and answer.token_ids[ended - 1] in chat.eos:
        ended -= 1
    if answer.hidden in ("", chat.decode(answer.token_ids[ended:])):
        return replace(answer, text=shown, token_ids=answer.token_ids[:ended], rendered=shown)
    return _up_to(transcript, answer, shown)


def begun_answer(transcript: Transcript, place: int, text: str) -> Turn:
    """The beginning `text` of an answer, as far as it can be with the tokens of the one that stands
    at this `place` of a transcript: all of them, if it is all that was said there."""
    if not text:
        return UNBEGUN
    known = transcript.turns[place] if place < len(transcript.turns) else UNBEGUN
    whole = without_end(transcript, known)
    if whole.rendered == text:
        return whole
    if known.is_answer and known.rendered.startswith(text):
        return _up_to(transcript, known, text)
    return transcript.given_answer(text, "cut")


def _up_to(transcript: Transcript, answer: Turn, text: str) -> Turn:
    """An `answer` as far as its first `text`, which may end within a token."""
    head = transcript.head(answer, len(text))
    rest = transcript.chat.encode_rest(text[len(head.rendered) :])
    return replace(head, text=text, token_ids=(*head.token_ids, *rest), rendered=text)
