"""The items of a response as they come: each is added empty, filled, and done. The event loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Literal

from kvactors.actors.frontends.server.exchange.events import (
    CallArguments,
    CallBegun,
    CallEnded,
    Event,
    Said,
    Thought,
)
from kvactors.actors.frontends.server.wire.chat import logprob_of

__all__ = ["Output", "Told"]

Told = dict[str, Any]
"""An event of the stream, but for its number."""
_Status = Literal["completed", "incomplete"]


class Output:
    """What a response consists of so far; `new_id` gives ids of items by a prefix. What is thought
    is told as its own `summary`, to who reads no other thoughts."""

    def __init__(self, new_id: Callable[[str], str], *, summary: bool) -> None:
        self._new_id = new_id
        self._thinking = _Summary if summary else _Thinking
        self._open: _Item | None = None
        self._begun = list[_Item]()

    @property
    def items(self) -> list[dict[str, Any]]:
        """The items, as they stand."""
        return [item.whole for item in self._begun]

    def tell(self, event: Event) -> Iterator[Told]:
        """The events of a piece of the answer."""
        if isinstance(event, CallBegun):
            yield from self._begin(_Call(self._new_id("fc"), len(self._begun), event))
        elif isinstance(event, Said):
            if not isinstance(self._open, _Words):
                yield from self._begin(_Words(self._new_id("msg"), len(self._begun)))
        elif isinstance(event, Thought) and not isinstance(self._open, _Thinking):
            yield from self._begin(self._thinking(self._new_id("rs"), len(self._begun)))
        if self._open is not None:
            yield from self._open.take(event)

    def close(self, status: _Status = "completed") -> Iterator[Told]:
        """The events that end the open item."""
        if self._open is not None:
            yield from self._open.close(status)
        self._open = None

    def close_all(self, status: _Status) -> Iterator[Told]:
        """Those that end the output: a complete one has words or calls, if only none."""
        if status == "completed" and all(isinstance(item, self._thinking) for item in self._begun):
            yield from self._begin(_Words(self._new_id("msg"), len(self._begun)))
        yield from self.close(status)

    def _begin(self, item: "_Item") -> Iterator[Told]:
        yield from self.close()
        self._open = item
        self._begun.append(item)
        yield from item.begin()


class _Item(ABC):
    """One item: `whole`, at its `place` in the output."""

    whole: dict[str, Any]

    def __init__(self, whole: dict[str, Any], place: int) -> None:
        self.whole = whole
        self._place = place

    def begin(self) -> Iterator[Told]:
        """It is there, and empty."""
        yield {
            "type": "response.output_item.added",
            "output_index": self._place,
            "item": dict(self.whole),
        }

    @abstractmethod
    def take(self, event: Event) -> Iterator[Told]:
        """Some more of it."""

    def close(self, status: _Status) -> Iterator[Told]:
        """It is whole, or cut."""
        self.whole["status"] = status
        yield {
            "type": "response.output_item.done",
            "output_index": self._place,
            "item": dict(self.whole),
        }

    def _event(self, kind: str, **content: Any) -> Told:
        place = {"item_id": self.whole["id"], "output_index": self._place}
        return {"type": f"response.{kind}", **place, **content}


class _Parted(_Item):
    """An item with one part of text, of the kind `kind`, in its field `field`: what is told of the
    text and of the part is called `text` and `part`."""

    kind = text = ""
    field, part = "content", "content_part"

    def __init__(self, whole: dict[str, Any], place: int) -> None:
        super().__init__({**whole, self.field: []}, place)
        self._part = self._empty()

    def begin(self) -> Iterator[Told]:
        yield from super().begin()
        yield self._of_part(f"{self.part}.added", part=dict(self._part))

    def take(self, event: Event) -> Iterator[Told]:
        if isinstance(event, Said | Thought):
            self._part["text"] += event.text
            more = self._more(event)
            yield self._of_part(f"{self.text or self.kind}.delta", delta=event.text, **more)

    def close(self, status: _Status) -> Iterator[Told]:
        part, beside = dict(self._part), self._beside()
        yield self._of_part(f"{self.text or self.kind}.done", text=part["text"], **beside)
        yield self._of_part(f"{self.part}.done", part=part)
        self.whole[self.field] = [part]
        yield from super().close(status)

    def _of_part(self, kind: str, **content: Any) -> Told:
        return self._event(kind, **{f"{self.field}_index": 0}, **content)

    def _empty(self) -> dict[str, Any]:
        return {"type": self.kind, "text": ""}

    def _more(self, event: Said | Thought) -> dict[str, Any]:
        return {}

    def _beside(self) -> dict[str, Any]:
        return {}


class _Words(_Parted):
    """A message."""

    kind = "output_text"

    def __init__(self, item_id: str, place: int) -> None:
        message = {"id": item_id, "type": "message", "status": "in_progress", "role": "assistant"}
        super().__init__(message, place)

    def _empty(self) -> dict[str, Any]:
        return {**super()._empty(), "annotations": [], "logprobs": []}

    def _more(self, event: Said | Thought) -> dict[str, Any]:
        logprobs = (
            [logprob_of(token) for token in event.logprobs] if isinstance(event, Said) else []
        )
        self._part["logprobs"] = self._part["logprobs"] + logprobs
        return {"logprobs": logprobs}

    def _beside(self) -> dict[str, Any]:
        return {"logprobs": self._part["logprobs"]}


class _Thinking(_Parted):
    """What was thought."""

    kind = "reasoning_text"

    def __init__(self, item_id: str, place: int) -> None:
        whole = {"id": item_id, "type": "reasoning", "status": "in_progress", "summary": []}
        super().__init__(whole, place)


class _Summary(_Thinking):
    """The same, where a summary of it is asked for."""

    kind, text = "summary_text", "reasoning_summary_text"
    field, part = "summary", "reasoning_summary_part"


class _Call(_Item):
    """A function call."""

    def __init__(self, item_id: str, place: int, begun: CallBegun) -> None:
        namespace = {"namespace": begun.namespace} if begun.namespace else {}
        call = {
            "id": item_id,
            "type": "function_call",
            "status": "in_progress",
            "call_id": begun.call_id,
            "name": begun.name,
            "arguments": "",
        }
        super().__init__({**call, **namespace}, place)

    def take(self, event: Event) -> Iterator[Told]:
        if isinstance(event, CallArguments):
            yield self._event("function_call_arguments.delta", delta=event.text)
        elif isinstance(event, CallEnded):
            self.whole["arguments"] = event.arguments
            said = {"name": self.whole["name"], "arguments": event.arguments}
            yield self._event("function_call_arguments.done", **said)
