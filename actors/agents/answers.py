"""What an answer is that has finished: its turn, and what of it its asker is told."""

import logging
from contextlib import suppress
from dataclasses import replace

from kvactors.actors.turns.messages_agent import Ask
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.conversation.prefix_match import Draft
from kvactors.core.conversation.token_offsets import whole_text
from kvactors.core.conversation.transcript import Transcript, as_told
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import TemplateError
from kvactors.core.schedule.events import Finished
from kvactors.core.schedule.sampling import Sampling

__all__ = ["log_answer", "make_answer", "prompt_of", "said_in", "said_now"]

logger = logging.getLogger(__name__)


def make_answer(
    transcript: Transcript, draft: Draft, ask: Ask, finished: Finished
) -> tuple[Turn, ...]:
    """The turn that answers a `draft` of the `transcript` with what has `finished`; none if no
    answer was wanted in `ask`."""
    if not ask.turn.answer:
        return ()
    transcript = as_told(transcript, ask.turn.template_kwargs)
    raw, begun = prompt_of(transcript, draft).raw, draft.begun.token_ids
    tokens = (*begun, *finished.request.generated)
    sampling = ask.turn.sampling
    stop = () if sampling.choices else sampling.stop
    turn = transcript.answer(tokens, finished.reason, raw=raw, stop=stop, begun=len(begun))
    if sampling.choices and not raw and turn.text not in sampling.choices:
        turn = replace(turn, text=turn.text.removeprefix(transcript.chat.shown_lead))
    return (turn,)


def prompt_of(transcript: Transcript, draft: Draft) -> Turn:
    """The turn that is answered behind a `draft` of the `transcript`."""
    return draft.turns[-1] if draft.turns else transcript.turns[draft.keep - 1]


def said_now(
    chat: ChatFormat, sampling: Sampling, answer: Turn, prompt: Turn | None
) -> tuple[str, str]:
    """The text that was drawn of an `answer` to a `prompt`, and what of it is words by `chat` and
    `sampling`, as `said_in` says: what it began with was known."""
    words = said_in(chat, sampling, answer.text, prompt)
    if not answer.begun:
        return answer.text, words
    begun = whole_text(chat.decode, answer.token_ids[: answer.begun])
    known = said_in(chat, sampling, begun, prompt)
    return answer.text[len(begun) :], words[common_prefix(known, words) :]


def said_in(chat: ChatFormat, sampling: Sampling, text: str, prompt: Turn | None) -> str:
    """What of the `text` that answers a `prompt` is neither thought nor a header, by `chat`; all of
    it where no template wrote that, or where `sampling` gave a form, which thoughts have not."""
    with suppress(TemplateError):
        chat = chat.told(prompt.told if prompt else None)
    formed = bool(sampling.choices or sampling.grammar) and not chat.header
    raw = prompt is not None and prompt.raw
    return text if raw or formed else chat.words(text)


def log_answer(finished: Finished, text: str, *, with_text: bool) -> None:
    """A line of the log for a turn that `finished`; `with_text`: the answer's `text` too."""
    if logger.isEnabledFor(logging.DEBUG):
        request, words = finished.request, f": {text!r}" if with_text else ""
        logger.debug(
            "%r: turn %d ends (%s) after %d tokens, began %s with %d%s",
            request.agent_id,
            request.turn,
            finished.reason,
            request.decoded,
            request.cache_state,
            request.kept,
            words,
        )
