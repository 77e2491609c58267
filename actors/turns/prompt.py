"""What a turn can be asked with: something new, or the whole conversation that it ends.

Checked on the caller's thread, before anything is sent.
"""

import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from kvactors.actors.turns.checks import check_flag
from kvactors.core.conversation.prefix_match import Message
from kvactors.core.conversation.turn import MOST_TOLD, check_template_kwargs
from kvactors.core.errors import EmptyPrompt, InvalidInput, TokenOutOfRange
from kvactors.core.model.info import ModelInfo
from kvactors.core.numbers import number, whole
from kvactors.core.text import check_text

__all__ = [
    "Continuation",
    "Messages",
    "NewText",
    "NewTokenIds",
    "PromptInput",
    "WholeConversation",
    "WholeText",
    "characters",
    "check_given",
    "check_messages",
    "check_prompt",
    "check_text_or_ids",
    "check_threshold",
    "check_token_ids",
    "check_told",
]

Messages = Sequence[Mapping[str, object]]
"""`[{"role": ..., "content": ...}, ...]`. A content is text, or a list of text parts,
`[{"type": "text", "text": ...}, ...]`, which are read as one text without anything between."""

# They iterate over ints too, and are never meant as token ids.
_NO_LISTS = (bytes, bytearray, memoryview, Mapping, Set)


@dataclass(frozen=True, slots=True)
class NewText:
    """Text to append, rendered with the chat template."""

    text: str


@dataclass(frozen=True, slots=True)
class NewTokenIds:
    """Token ids to append as they are, of the tokenizer of `model`."""

    token_ids: tuple[int, ...]
    model: ModelInfo


@dataclass(frozen=True, slots=True)
class WholeText:
    """The whole conversation as one text, template included. `threshold`: the share of the
    transcript's characters that has to match for them to be kept."""

    text: str
    threshold: float


@dataclass(frozen=True, slots=True)
class WholeConversation:
    """The whole conversation as (role, text) messages. `threshold` as in WholeText. `goes_on`: with
    the answer that it ends with; without messages, with the last one that is remembered."""

    messages: tuple[Message, ...]
    threshold: float
    goes_on: bool = False


@dataclass(frozen=True, slots=True)
class Continuation:
    """(role, text) messages behind the first `keep` turns, by one who knows what those say; the
    turns after them are forgotten. Without any the last answer is given anew. `system`: what a
    conversation that keeps nothing begins with. `begun`: what the answer goes on with, as a ledger
    has it."""

    keep: int
    messages: tuple[Message, ...]
    system: str | None = None
    begun: str = ""


PromptInput = NewText | NewTokenIds | WholeText | WholeConversation | Continuation


def characters(given: PromptInput) -> int:
    """How much text is to be tokenized, at most."""
    if isinstance(given, WholeConversation | Continuation):
        more = len(given.begun + (given.system or "")) if isinstance(given, Continuation) else 0
        return more + sum(len(text) for _, text in given.messages)
    return 0 if isinstance(given, NewTokenIds) else len(given.text)


def check_prompt(
    model: ModelInfo,
    prompt: object,
    *,
    messages: object,
    match: bool,
    threshold: object,
    goes_on: bool = False,
) -> PromptInput:
    """The `prompt` or `messages`, `match`, `threshold` and `continue_final_message` (`goes_on`) of
    `Agent.ask`, for this `model`. Raises EmptyPrompt, TokenOutOfRange, InvalidInput."""
    share = check_threshold(threshold)
    check_flag("match", match)
    check_given(prompt, messages, goes_on=goes_on)
    if goes_on or messages is not None:
        said = () if messages is None else check_messages(messages)
        return WholeConversation(said, share, goes_on)
    given = check_text_or_ids(prompt, model.spec.vocab_size, match=match)
    if isinstance(given, str):
        return WholeText(given, share) if match else NewText(given)
    return NewTokenIds(given, model)


def check_given(prompt: object, messages: object, *, goes_on: bool) -> None:
    """Raise InvalidInput unless either a `prompt` or `messages` are given; where an answer
    `goes_on`, messages or neither."""
    check_flag("continue_final_message", goes_on)
    if prompt is not None and goes_on:
        raise InvalidInput(
            "continue_final_message goes on with the last of messages, or without any with the "
            "agent's last answer: give no prompt"
        )
    if (prompt is None) == (messages is None) and not (goes_on and prompt is None):
        raise InvalidInput("give a prompt or messages, one of them")


def check_threshold(threshold: object) -> float:
    """The share of a transcript that has to match. Raises InvalidInput."""
    share = number(threshold)
    if share is None:
        raise InvalidInput(f"threshold must be a number, not {type(threshold).__name__}")
    if not 0 <= share <= 1:
        raise InvalidInput(f"threshold must be between 0 and 1, not {threshold!r}")
    return share


def check_told(template_kwargs: object, *, raw: bool) -> dict[str, Any] | None:
    """The `template_kwargs` of a turn, whose prompt may be `raw`; None for none. Raises
    InvalidInput."""
    written = check_template_kwargs(template_kwargs, InvalidInput, MOST_TOLD)
    if template_kwargs and raw:
        raise InvalidInput(
            "template_kwargs are for what the chat template writes: token ids, and a text with "
            "match=True, are appended as they are"
        )
    # What the caller changes later is not meant.
    told: dict[str, Any] | None = json.loads(written)
    return told


def check_text_or_ids(prompt: object, vocabulary: int, *, match: bool) -> str | tuple[int, ...]:
    """A `prompt` of text, or of token ids below `vocabulary`, which no `match` compares. Raises
    EmptyPrompt, TokenOutOfRange, InvalidInput."""
    if isinstance(prompt, str):
        if not prompt:
            raise EmptyPrompt("the prompt is empty")
        return check_text("the prompt", prompt)
    if match:
        raise InvalidInput(f"match=True compares text, not {type(prompt).__name__}")
    return check_token_ids(prompt, vocabulary)


def check_messages(messages: object) -> tuple[Message, ...]:
    """Those of a whole conversation, as (role, text). Raises InvalidInput, EmptyPrompt."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise InvalidInput(f"messages must be a list, not {type(messages).__name__}")
    if not messages:
        raise EmptyPrompt("messages is empty")
    return tuple(_message(index, message) for index, message in enumerate(messages))


def _message(index: int, message: object) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidInput(
            f'messages[{index}] must be {{"role": ..., "content": ...}}, '
            f"not {type(message).__name__}"
        )
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        raise InvalidInput(f"messages[{index}] needs a role, not {role!r}")
    if isinstance(content, list | tuple):
        parts = enumerate(content)
        content = "".join(_text_part(f"messages[{index}].content[{n}]", p) for n, p in parts)
    if not isinstance(content, str):
        raise InvalidInput(f"messages[{index}] needs text as content, not {content!r}")
    name = f"messages[{index}]"
    return check_text(f"the role of {name}", role), check_text(name, content)


def _text_part(place: str, part: object) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if isinstance(part, Mapping) else None
    if kind != "text" or not isinstance(text, str):
        raise InvalidInput(f'{place} must be {{"type": "text", "text": ...}}, not {part!r:.80}')
    return text


def check_token_ids(prompt: object, vocab_size: int) -> tuple[int, ...]:
    """A `prompt` of token ids below `vocab_size`. Raises InvalidInput, EmptyPrompt,
    TokenOutOfRange."""
    if isinstance(prompt, _NO_LISTS) or not hasattr(prompt, "__iter__"):
        raise InvalidInput(f"a prompt is text or a list of token ids, not {type(prompt).__name__}")
    tokens = tuple(_token(token, vocab_size) for token in prompt)
    if not tokens:
        raise EmptyPrompt("the prompt has no token ids")
    return tokens


def _token(token: object, vocab_size: int) -> int:
    value = whole(token)
    if value is None:
        instead = ": a conversation goes into messages=" if isinstance(token, Mapping) else ""
        raise InvalidInput(f"token ids are ints, not {token!r}{instead}")
    if not 0 <= value < vocab_size:
        raise TokenOutOfRange(
            f"token id {token!r} is outside the vocabulary: 0 <= id < {vocab_size}"
        )
    return value
