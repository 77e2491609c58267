"""What a client says, as it is compared. Pure: any thread."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvactors.actors.frontends.server.exchange.inquiry import Inquiry, Message
from kvactors.actors.frontends.server.identity.canonical import (
    beginning,
    canonical,
    chains,
    difference,
    in_order,
    tool_marks,
)
from kvactors.actors.frontends.server.identity.rules import Rule, shorn, strip

__all__ = ["Conversation", "read"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """What an inquiry says: `said`, without the `system` prompt in front, and that as it is
    `compared`. `before` is the hash of all that comes before it, `hashes` has one for each message
    of it."""

    system: str
    said: tuple[Message, ...]
    compared: tuple[Message, ...]
    before: bytes
    hashes: tuple[bytes, ...]
    values: dict[str, str]
    tools: dict[str, str]

    @property
    def told(self) -> str:
        """What its system prompt and tools tell, as JSON."""
        return json.dumps({"values": self.values, "tools": list(self.tools)})

    @property
    def known(self) -> tuple[bytes, ...]:
        """The hashes of what may be known already: not with what was said last, where rules take
        out of it what may be another thing now."""
        hashes = (self.before, *self.hashes)
        return hashes[:-1] if self.hashes and self.hashes[-1] in self.shorn else hashes

    @property
    def shorn(self) -> frozenset[bytes]:
        """The hashes up to messages that rules take something out of: nobody is answered there,
        since who says the same without it would be, too."""
        both = zip(self.hashes, self.said, self.compared, strict=True)
        return frozenset(hash_ for hash_, said, compared in both if said is not compared)

    @property
    def before_last(self) -> "Conversation":
        """Without what is said last."""
        said, compared, hashes = self.said[:-1], self.compared[:-1], self.hashes[:-1]
        return replace(self, said=said, compared=compared, hashes=hashes)

    def miss(self, last: bytes | None, said_behind: Callable[[bytes], list[str]]) -> str:
        """Where it leaves what is known, up to the hash `last` (None: of nothing), with some
        characters of both sides: of what was `said_behind` that. None, where it begins as nobody's
        does."""
        matched, begins = (0, self.before) if last is None else (self.depth(last), last)
        if matched == len(self.said):
            return ""
        ours = canonical(self.compared[matched])
        others = [theirs for theirs in said_behind(begins) if theirs != ours]
        at, shown = max((difference(ours, theirs) for theirs in others), default=(0, ""))
        if not shown or (last is None and at == 0):
            return ""
        return f"message {matched}, character {at}: {shown}"

    def depth(self, chain: bytes) -> int:
        """Of how many messages `chain` is the hash."""
        return (self.before, *self.hashes).index(chain)


def read(inquiry: Inquiry, rules: Sequence[Rule], goes_on: bytes | None) -> Conversation:
    """The conversation of an `inquiry`, compared by `rules`, behind that of the hash `goes_on`."""
    messages = inquiry.messages
    first = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    # Behind what is known already none of them comes first; one that says nothing else is answered.
    first = 0 if goes_on or first == len(messages) else first
    first = min(first, 1) if inquiry.one_prompt else first
    system = "\n\n".join(message.text for message in messages[:first])
    stripped = strip(system, rules)
    # What stands before a first question may not stand before anything else.
    role = next((message.role for message in messages[first:]), "user")
    head = inquiry.head if role == "user" else f"{inquiry.head}\n{role}"
    before = goes_on or beginning(inquiry.client.tenant, head)
    if goes_on is None:
        (before,) = chains(before, [Message("system", stripped.text)])
    said = in_order(messages[first:])
    compared = tuple(_compared(message, rules) for message in said)
    hashes = tuple(chains(before, compared))
    marks = tool_marks(inquiry.tools)
    return Conversation(system, said, compared, before, hashes, dict(stripped.values), marks)


def _compared(message: Message, rules: Sequence[Rule]) -> Message:
    """The `message` without what rules take out of it: itself, where that is nothing."""
    text = shorn(message.text, rules) if message.role == "user" else message.text
    return message if text == message.text else replace(message, text=text)
