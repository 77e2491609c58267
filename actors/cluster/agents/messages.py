"""Messages to agents of a cluster: plain values, packed where they are sent. Any thread.

What is answered is packed as one of these:

    {"value": what on_message returned}
    {"error": [the name of what it raised, its message]}
    {"request": id, "given": what the protocol's client gives}    the turn of an agent without one
"""

from collections.abc import Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]

from kvactors.actors.cluster.agents.asking import Asking
from kvactors.actors.cluster.machine.known import known_kind
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.protocol.errors import WrongRecord, words_of
from kvactors.actors.cluster.protocol.interfaces import Letter
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.core.errors import BehaviourFailed, InvalidInput

__all__ = ["MOST_BYTES", "error_body", "pack_message", "send", "unpack_message", "value_body"]

MOST_BYTES = 16 << 20
"""Of one message, packed."""
PLAIN = "None, bool, int of 64 bits, float, str, bytes, and lists, tuples and dicts of these"


def pack_message(value: Any) -> bytes:
    """A message as it crosses. Raises InvalidInput, which names the type that has no plain form."""
    try:
        body = bytes(msgpack.packb(value, default=_refuse, unicode_errors="surrogatepass"))
        if isinstance(value, dict | list | tuple):
            # A tuple is a key here, and a list there.
            _unpacked(body)
    except InvalidInput:
        raise
    except (OverflowError, TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"a message between agents of a cluster is {PLAIN}: {error}") from error
    if len(body) > MOST_BYTES:
        raise InvalidInput(f"a message has at most {MOST_BYTES} bytes, and this one {len(body)}")
    return body


def unpack_message(body: bytes) -> Any:
    """The value again: tuples are lists. Raises WrongRecord."""
    try:
        return _unpacked(body)
    except (TypeError, ValueError, msgpack.UnpackException) as error:
        raise WrongRecord(reason=f"no message that is known here: {error}") from error


def _unpacked(body: bytes) -> Any:
    return msgpack.unpackb(body, strict_map_key=False, unicode_errors="surrogatepass")


def value_body(value: Any) -> bytes:
    """What `on_message` returned, as it crosses; an error where that has no plain form."""
    try:
        return pack_message({"value": value})
    except InvalidInput as error:
        return error_body(error)


def error_body(error: BaseException) -> bytes:
    """What it raised."""
    return pack_message({"error": [type(error).__name__, words_of(error)]})


def send(
    link: Link,
    to: str,
    body: bytes,
    sender: str | None,
    *,
    asks: bool,
    seconds: float | None,
    ticket: str = "",
    lives: Callable[[], bool] = lambda: True,
    left: Callable[[], object] = lambda: None,
) -> ReplyFuture[Any]:
    """Send a packed `body` of `sender` `to` an agent, by `link`: a future of its answer within so
    many `seconds` if it `asks`, and then called by its `ticket`, else of when it is in the mailbox
    there. `lives` says whether the sender is still who said it; `left` is called when it waits
    here no more, if it ever did. It fails as `Posting.post` says, and with what `on_message`
    raised: BehaviourFailed for what is no error of kvactors."""
    letter = Letter(sender, body, asks, seconds, ticket)
    return link.posting.post(to, letter, lambda found: _read(link, to, found), lives, left)


def _read(link: Link, to: str, body: bytes) -> Any:
    answer = unpack_message(body)
    if "given" in answer:
        return Asking(to, link).reply({"id": answer["request"]}, answer["given"])
    if "error" in answer:
        kind, message = answer["error"]
        known = known_kind(kind, message)
        raise known or BehaviourFailed(f"{to!r} raised {kind}: {message}")
    return answer["value"]


def _refuse(value: object) -> Any:
    kind = type(value)
    raise InvalidInput(
        f"a message between agents of a cluster is {PLAIN}, and this one has a "
        f"{kind.__module__}.{kind.__qualname__}"
    )
