"""What two messages must have in common to be the same one. Pure: any thread.

Compared is what was meant, never how it was rendered: an assistant's message with calls whose ids
we gave out is the turn that made them, whatever became of its JSON or its text; thinking counts for
nothing; spaces at either end neither. Messages are hashed one behind the other, so that a hash
stands for the whole conversation up to there. The results of calls that were made together are put
in the order of the calls first.
"""

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby, takewhile
from typing import Any

import xxhash

from kvactors.actors.frontends.server.exchange.inquiry import Call, Message, Tool
from kvactors.core.conversation.hashing import common_prefix

__all__ = [
    "beginning",
    "canonical",
    "chains",
    "difference",
    "in_order",
    "new_call_id",
    "prompt_mark",
    "tool_marks",
]

_GIVEN = "call_kv"
# Of a differing place, on both sides.
_SHOWN = 10
# Made once: json.dumps makes one for each message of a conversation.
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_GIVEN_ID = re.compile(_GIVEN + r"[0-9a-f]{24}$")


def new_call_id(place: int) -> str:
    """An id for the call at this `place` of an answer, that we give out: long enough that nobody
    guesses one."""
    return f"{_GIVEN}{secrets.token_hex(11)}{min(place, 255):02x}"


def canonical(message: Message) -> str:
    """What of a `message` is compared."""
    if not message.calls and message.role != "tool":
        # The same, for the many that have no more.
        return f'["{message.role}", {_ENCODER.encode(message.text.strip())}]'
    said: list[Any] = [message.role, message.text.strip()]
    if message.calls and all(_GIVEN_ID.match(call.call_id) for call in message.calls):
        said = ["assistant", [call.call_id for call in message.calls]]
    elif message.calls:
        said.append([_call(call) for call in message.calls])
    if message.role == "tool":
        said.append(message.call_id)
    return _ENCODER.encode(said)


def difference(ours: str, theirs: str) -> tuple[int, str]:
    """At which character of their texts two messages differ, as they are compared, and some of
    both sides there: of their roles, if the texts are the same."""
    (role, text), (other, known) = _spoken(ours), _spoken(theirs)
    at = common_prefix(text, known)
    if text == known:
        return at, f"{role!r} instead of {other!r}"
    return at, f"{text[at : at + _SHOWN]!r} instead of {known[at : at + _SHOWN]!r}"


def beginning(tenant: str, head: str = "") -> bytes:
    """The hash of the empty conversation of a `tenant`, before which a `head` of its own stands."""
    begun = xxhash.xxh3_128_digest(tenant.encode())
    return xxhash.xxh3_128_digest(begun + head.encode()) if head else begun


def chains(last: bytes, messages: Sequence[Message]) -> list[bytes]:
    """A hash of the conversation up to each of `messages`, that one included, behind the one whose
    hash is `last`."""
    found = list[bytes]()
    for message in messages:
        said = canonical(message).encode("utf-8", "surrogatepass")
        last = xxhash.xxh3_128_digest(last + said)
        found.append(last)
    return found


def in_order(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same conversation, with results of tools in the order of the calls that they answer; of
    calls that are not in it, by the places that the ids have which we gave out."""
    ordered = list[Message]()
    first = [m.call_id for m in takewhile(lambda message: message.role == "tool", messages)]
    given = all(map(_GIVEN_ID.match, first))
    order = {call_id: int(call_id[-2:], 16) for call_id in first if given}
    for results, group in groupby(messages, lambda message: message.role == "tool"):
        some = list(group)
        if results:
            some.sort(key=lambda message: order.get(message.call_id, len(order)))
        order = {call.call_id: place for place, call in enumerate(some[-1].calls)}
        ordered += some
    return tuple(ordered)


def prompt_mark(system_prompt: str | None) -> str:
    """A hash of what an agent's ledger begins with."""
    return xxhash.xxh3_64_hexdigest((system_prompt or "").encode("utf-8", "surrogatepass"))


def tool_marks(tools: Iterable[Tool]) -> dict[str, str]:
    """A hash of each tool by its name: the order of tools, and of keys in them, is none of it."""
    return {
        f"{tool.namespace}/{tool.name}": xxhash.xxh3_64_hexdigest(
            _sorted([tool.description, tool.parameters, tool.strict]).encode()
        )
        for tool in tools
    }


def _spoken(said: str) -> tuple[str, str]:
    """The role and the text of a message, as it is compared; its calls stand behind the text."""
    role, *parts = json.loads(said)
    return role, "".join(part if isinstance(part, str) else _sorted(part) for part in parts)


def _call(call: Call) -> list[str]:
    try:
        arguments = _sorted(json.loads(call.arguments or "{}"))
    except ValueError:
        arguments = call.arguments
    return [call.namespace, call.name, arguments]


def _sorted(value: Sequence[Any] | Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
