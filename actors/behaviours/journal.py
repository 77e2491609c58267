"""The journal: what behaviours were told, thought and sent, so that it can be replayed.

A file of msgpack maps, appended in the order of time. `at` is in seconds since it was opened:

    {"kind": "message", "at", "agent", "sender", "message"}     an agent begins to handle it
    {"kind": "turn", "at", "agent", "number", "text", "token_ids", "finish_reason", "scores"}
                                what was observed is one, too
    {"kind": "rewind", "at", "agent", "number", "turns", "tokens"}  what was left
    {"kind": "answer", "at", "agent", "number", "value"}        of the number-th `ask`
    {"kind": "failed", "at", "agent", "of", "number", "error", "text", "at_once"}  one of these
                                instead; `at_once`: it was refused, there was no future
    {"kind": "sent", "at", "agent", "number", "to", "message"}  the number-th thing it sent

Each kind of an agent is numbered through, also where its behaviour has ended and it was given
another one.
Values of msgpack stand as they are; others are maps of one key that names the kind. Classes are
named, never imported from the file: whoever reads it says which may be made.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.reply import Reply, Rewound
from kvactors.core.errors import InvalidConfig, InvalidInput

__all__ = ["Journal", "pack", "read_journal", "unpack"]

LONGEST_INT = 2**63


class Journal:
    """Appends records. Any thread."""

    def __init__(self, path: str | Path) -> None:
        try:
            # What agents said stands in it as it is: for nobody else.
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._file = os.fdopen(descriptor, "wb")
        except FileExistsError as error:
            raise InvalidConfig(f"{path} exists: a journal is of one run, in a new file") from error
        except OSError as error:
            raise InvalidConfig(f"no journal can be made at {path}: {error.strerror}") from error
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self._counts: Counter[tuple[str, str]] = Counter()

    def next(self, agent_id: str, of: str) -> int:
        """The number of what `agent_id` begins now: a turn, a rewind or whatever it is `of`."""
        with self._lock:
            self._counts[agent_id, of] += 1
            return self._counts[agent_id, of]

    def message(self, agent_id: str, sender: str | None, message: Any) -> None:
        """The agent `agent_id` begins to handle a `message` of `sender`."""
        self._write("message", agent_id, sender=sender, message=pack(message))

    def ended(self, agent_id: str, of: str, number: int, future: ReplyFuture[Any]) -> None:
        """What `agent_id` began, `of` this kind and `number`, ended as this `future` did."""
        if future.error is not None:
            self.failed(agent_id, of, number, future.error)
        else:
            self._write(of, agent_id, number=number, **_VALUES[of](future.get()))

    def failed(
        self, agent_id: str, of: str, number: int, error: BaseException, *, at_once: bool = False
    ) -> None:
        """What `agent_id` began, `of` this kind and `number`, ended with an `error`; `at_once`: it
        was refused."""
        name, text = type(error).__name__, str(error)
        values = {"of": of, "number": number, "error": name, "text": text, "at_once": at_once}
        self._write("failed", agent_id, **values)

    def sent(self, agent_id: str, to: str, message: Any) -> None:
        """`agent_id` sent a `message` `to` an agent or a topic."""
        number = self.next(agent_id, "sent")
        self._write("sent", agent_id, number=number, to=to, message=pack(message))

    def close(self) -> None:
        """Write what is buffered and close the file; later records are dropped."""
        with self._lock:
            self._file.close()

    def _write(self, kind: str, agent_id: str, **values: Any) -> None:
        at = time.monotonic() - self._begin
        frame = msgpack.packb({"kind": kind, "at": at, "agent": agent_id, **values})
        with self._lock:
            if not self._file.closed:
                self._file.write(frame)


def _of_turn(reply: Reply) -> dict[str, Any]:
    return {
        "text": reply.text,
        "answer": reply.answer,
        "token_ids": list(reply.token_ids),
        "finish_reason": reply.finish_reason,
        "scores": None if reply.scores is None else dict(reply.scores),
    }


def _of_rewind(rewound: Rewound) -> dict[str, Any]:
    return {"turns": rewound.turns, "tokens": rewound.tokens}


def _of_answer(value: Any) -> dict[str, Any]:
    return {"value": pack(value)}


_VALUES: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "turn": _of_turn,
    "rewind": _of_rewind,
    "answer": _of_answer,
}


def read_journal(path: str | Path) -> Iterator[dict[str, Any]]:
    """The records of a journal; a torn last one is left out. Raises InvalidInput."""
    with Path(path).open("rb") as file:
        unpacker = msgpack.Unpacker(file, strict_map_key=False)
        try:
            for record in unpacker:
                if not isinstance(record, dict) or "kind" not in record:
                    raise InvalidInput(f"{path} is not a journal: {str(record)[:80]!r}")
                yield record
        except (msgpack.UnpackException, ValueError) as error:
            if isinstance(error, InvalidInput):
                raise
            raise InvalidInput(f"{path} is not a journal: {error}") from error


def pack(value: Any) -> Any:
    """A message as msgpack can have it. What it cannot stands as its `repr`."""
    if isinstance(value, Enum):
        return {"enum": [type(value).__name__, value.name]}
    if value is None or isinstance(value, bool | float | str | bytes):
        return value
    if isinstance(value, int):
        return value if -LONGEST_INT <= value < LONGEST_INT else {"int": str(value)}
    if isinstance(value, list):
        return [pack(item) for item in value]
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        named = {name: pack(item) for name, item in value._asdict().items()}
        return {"type": [type(value).__name__, named]}
    if isinstance(value, tuple):
        return {"tuple": [pack(item) for item in value]}
    if isinstance(value, set | frozenset):
        return {"set": sorted((pack(item) for item in value), key=repr)}
    if isinstance(value, dict):
        return {"dict": [[pack(key), pack(item)] for key, item in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: pack(getattr(value, field.name)) for field in fields(value)}
        return {"type": [type(value).__name__, named]}
    agent_id = getattr(value, "agent_id", None)
    return {"agent": agent_id} if isinstance(agent_id, str) else {"repr": repr(value)}


def unpack(value: Any, types: Iterable[type]) -> Any:
    """A message again. Raises InvalidInput for a class that is not among `types`."""
    known = {kind.__name__: kind for kind in types}

    def make(item: Any) -> Any:
        if isinstance(item, list):
            return [make(one) for one in item]
        if not isinstance(item, dict):
            return item
        [(kind, content)] = item.items()
        if kind == "dict":
            return {make(key): make(one) for key, one in content}
        if kind == "tuple":
            return tuple(make(one) for one in content)
        if kind == "set":
            return frozenset(make(one) for one in content)
        if kind == "int":
            return int(content)
        if kind in ("type", "enum"):
            return make_known(kind, *content)
        return item

    def make_known(kind: str, name: str, content: Any) -> Any:
        if name not in known:
            raise InvalidInput(f"the journal has a {name}: pass its class in types=")
        if kind == "enum":
            return known[name][content]  # type: ignore[index]
        return known[name](**{field: make(one) for field, one in content.items()})

    return make(value)
