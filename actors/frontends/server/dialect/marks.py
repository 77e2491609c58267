"""Marks: what divides an answer into words, thoughts and calls."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from kvactors.core.conversation.tool_format import CHANNEL, called

__all__ = ["Channels", "Divides", "Marks", "Within", "called_in", "calling"]

Within = Literal["text", "thought", "call", "header"]
_START, _MESSAGE, _END, _CALL = "<|start|>", "<|message|>", "<|end|>", "<|call|>"
# What a header begins with, the first one or those behind a message.
_HEADERS = ("<|channel|>", " to=", "assistant")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")


class Divides(Protocol):
    """How an answer is divided. `first`: what it begins with; `calls`, `thoughts`: there may be
    some."""

    @property
    def first(self) -> Within: ...
    @property
    def calls(self) -> bool: ...
    @property
    def thoughts(self) -> bool: ...

    def ends(self, within: Within, head: str) -> tuple[str, ...]:
        """The marks that may come next, of what is `within`; a call is behind this `head`."""
        ...

    def after(self, within: Within, part: str, mark: str) -> Within:
        """What follows a `mark` that ended the `part` that it was `within`."""
        ...

    def heads(self, text: str) -> bool:
        """Whether a text may be a header's beginning, where there should be one."""
        ...

    def unended(self, head: str) -> bool:
        """Whether a call behind this mark or header goes to the end of the answer."""
        ...

    def rest(self, within: Within, head: str, text: str) -> str:
        """What of the `text` that is left at the end, `within` what is behind this `head`, was
        said."""
        ...


@dataclass(frozen=True, slots=True)
class Marks:
    """What stands before and after calls, in one way or several, and around thoughts. A call with
    "" behind it goes to the end of the answer. `thinking`: it begins with a thought."""

    pairs: tuple[tuple[str, str], ...] = ()
    think: str = ""
    think_end: str = ""
    thinking: bool = False

    @property
    def first(self) -> Within:
        """As `Divides` has it."""
        return "thought" if self.thinking else "text"

    @property
    def calls(self) -> bool:
        """As `Divides` has it."""
        return bool(self.pairs)

    @property
    def thoughts(self) -> bool:
        """As `Divides` has it."""
        return bool(self.think) or self.thinking

    def ends(self, within: Within, head: str) -> tuple[str, ...]:
        """As `Divides` has it."""
        known: Mapping[Within, tuple[str, ...]] = {
            "text": (*(call for call, _ in self.pairs), self.think),
            "thought": (self.think_end,),
            "call": tuple(end for call, end in self.pairs if call == head),
        }
        return tuple(mark for mark in known[within] if mark)

    def after(self, within: Within, part: str, mark: str) -> Within:
        """What follows a `mark` that ended the `part` that it was `within`."""
        if within != "text":
            return "text"
        return "thought" if mark == self.think else "call"

    def heads(self, text: str) -> bool:
        """As `Divides` has it."""
        return False

    def unended(self, head: str) -> bool:
        """As `Divides` has it."""
        return (head, "") in self.pairs

    def rest(self, within: Within, head: str, text: str) -> str:
        """All of the `text` that is left, `within` whatever it is behind its `head`."""
        return text


@dataclass(frozen=True, slots=True)
class Channels:
    """An answer of messages, each with a header that says its channel, as gpt-oss writes them (the
    harmony format): what is analysed is thought, a message to a tool is a call, if there may be
    `calls`, and all else is said."""

    calls: bool = False
    first: Within = "header"
    thoughts: bool = True

    def ends(self, within: Within, head: str) -> tuple[str, ...]:
        """As `Divides` has it."""
        # Of words that look as if a message ended there is none behind.
        return (_MESSAGE,) if within == "header" else (_END + _START, _CALL + _START)

    def after(self, within: Within, part: str, mark: str) -> Within:
        """What follows a `mark` that ended the `part` that it was `within`."""
        if within != "header":
            return "header"
        if self.calls and called(part):
            return "call"
        channel = _CHANNEL.search(part)
        return "thought" if channel and channel[1] == "analysis" else "text"

    def heads(self, text: str) -> bool:
        """As `Divides` has it."""
        return any(text.startswith(head) or head.startswith(text) for head in _HEADERS)

    def unended(self, head: str) -> bool:
        """As `Divides` has it."""
        return True

    def rest(self, within: Within, head: str, text: str) -> str:
        """What of the `text` that is left, `within` a header or a message behind a `head`, is no
        header, or half of one, and no end."""
        if within != "header":
            return text.removesuffix(_END).removesuffix(_CALL)
        half = head or CHANNEL.startswith(text) or CHANNEL in text or called(text)
        return "" if half else text


def calling(name: str, arguments: str) -> str:
    """The message that calls a tool of this `name` with `arguments`, which are JSON."""
    return (
        f"<|channel|>commentary to=functions.{name} <|constrain|>json{_MESSAGE}{arguments}{_CALL}"
    )


def called_in(text: str) -> Mapping[str, Any]:
    """The call that a message with its header makes. Raises ValueError."""
    header, _, said = text.partition(_MESSAGE)
    return {"name": called(header), "arguments": json.loads(said or "{}")}
