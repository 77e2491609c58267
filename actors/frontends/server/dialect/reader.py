"""Reader: an answer's text, as it comes, becomes thoughts, words and calls. One thread at a
time."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kvactors.actors.frontends.server.dialect.marks import Divides
from kvactors.actors.frontends.server.dialect.token_texts import TokenLine
from kvactors.actors.frontends.server.dialect.words import Words
from kvactors.actors.frontends.server.exchange.events import (
    CallArguments,
    CallBegun,
    CallEnded,
    Event,
    Thought,
    TokenLogprob,
)
from kvactors.actors.frontends.server.exchange.inquiry import Call, Tool

__all__ = ["Parse", "Reader"]

Parse = Callable[[str, Sequence[Mapping[str, Any]]], list[Mapping[str, Any]]]
"""The calls that a text between marks makes, each with name and arguments, given the tools."""


class Reader:
    """Reads one answer.

    `text` and `calls` are what was found so far; thoughts are no part of the text. What is no call
    that can be read, though it looks like one, is text. `marks` divide it,
    `parse` reads a call, `new_id` names it. `tools` are those that may be called, by
    the names that the model uses; where calls are not
    `parallel` only the first of several between marks is one. What tokens of the answer's text were
    given with is told with it; of thoughts and calls it is not.
    """

    def __init__(
        self,
        marks: Divides,
        parse: Parse,
        tools: Mapping[str, Tool],
        new_id: Callable[[int], str],
        *,
        parallel: bool = True,
    ) -> None:
        self.thoughts = ""
        self.calls: tuple[Call, ...] = ()
        self._marks = marks
        self._parse = parse
        self._tools = tools
        self._new_id = new_id
        self._parallel = parallel
        self._within = marks.first
        self._held = self._header = ""
        # What begins a line of code is no word before a thought or a call.
        self._words = Words(as_it_is=not (marks.calls or marks.thoughts))
        self._line = TokenLine()

    @property
    def text(self) -> str:
        """What was said so far, beside thoughts and calls."""
        return self._words.text

    def begin(self, text: str, heard: str) -> None:
        """Stand behind a `text` that the answer goes on with, of whose words its reader has `heard`
        these: what follows them is told."""
        self._line.add_text(text)
        for _ in self.feed(text):
            pass
        self.thoughts = ""
        self._words.go_on(heard)

    def feed(self, text: str, logprobs: Sequence[TokenLogprob] = ()) -> Iterator[Event]:
        """The events of some more text of the answer; `logprobs` are those of more tokens of it,
        whose text may come later."""
        self._line.add(logprobs)
        self._held += text
        self._without_header()
        while (found := self._next_mark()) is not None:
            place, mark = found
            before, self._held = self._held[:place], self._held[place + len(mark) :]
            yield from self._part(before, mark)
            yield from self._enter(before, mark)
            self._line.pass_on(mark)
            self._without_header()
        if self._within not in ("call", "header"):
            certain = len(self._held) - self._doubtful()
            shown, self._held = self._held[:certain], self._held[certain:]
            yield from self._part(shown)

    def end(self, *, cut: bool = False) -> Iterator[Event]:
        """Those of its end. Of an answer that was `cut` half a call is no word: it is not told."""
        rest, self._held = self._marks.rest(self._within, self._header, self._held), ""
        if self._within == "header":
            self._within = "text"
        begun = self._within == "text" and self.calls and rest and self._may_begin(rest)
        if cut and (begun or self._within == "call"):
            self._words.called()
        elif self._within == "call" and not self._marks.unended(self._header):
            self._within = "text"
            yield from self._part(self._header + rest)
        else:
            yield from self._part(rest)
        yield from self._words.end()

    def _next_mark(self) -> tuple[int, str] | None:
        places = [
            (self._held.find(mark), mark) for mark in self._marks.ends(self._within, self._header)
        ]
        return min((found for found in places if found[0] >= 0), default=None)

    def _enter(self, part: str, mark: str) -> Iterator[Event]:
        """What follows a `mark` that ended a `part`."""
        before, self._within = self._within, self._marks.after(self._within, part, mark)
        self._header = part + mark if before == "header" else mark
        # Messages of an answer are paragraphs of it.
        if before == "header" and self._within == "text":
            self._words.wait("\n\n" if self.text else "", ())
        elif before == "header" and self._within == "thought" and self.thoughts:
            self.thoughts += "\n\n"
            yield Thought("\n\n")

    def _may_begin(self, rest: str) -> bool:
        """Whether what is left may be the beginning of a call."""
        return any(mark.startswith(rest) for mark in self._marks.ends("text", ""))

    def _doubtful(self) -> int:
        """How many characters at the end may be the beginning of a mark."""
        marks = self._marks.ends(self._within, self._header)
        longest = max((len(mark) - 1 for mark in marks), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(mark.startswith(self._held[-length:]) for mark in marks):
                return length
        return 0

    def _without_header(self) -> None:
        """What is no header, where one should be, is said."""
        if self._within == "header" and not self._marks.heads(self._held):
            self._within = "text"

    def _part(self, text: str, mark: str = "") -> Iterator[Event]:
        """The events of a part of what it is in, which a `mark` ends."""
        if self._within == "header":
            self._line.pass_on(text)
        elif self._within == "call":
            self._line.pass_on(text)
            yield from self._call(text, mark)
        elif self._within == "thought":
            self._line.pass_on(text)
            self.thoughts += text
            if text:
                yield Thought(text)
        else:
            # Where nothing can be called no blank waits.
            said = text.rstrip() if self._marks.calls else text
            if said:
                yield from self._words.add(said, self._line.pass_on(said))
            blank = text[len(said) :]
            self._words.wait(blank, self._line.pass_on(blank))

    def _call(self, text: str, mark: str) -> Iterator[Event]:
        described = [_described(name, tool) for name, tool in self._tools.items()]
        # The header of a message is part of the call.
        said = self._header + text if self._marks.first == "header" else text
        try:
            made = [_made(call) for call in self._parse(said.strip(), described)]
            if not made:
                raise ValueError("there is no call between the marks")
        except Exception:
            # Every parser fails in its own way.
            yield from self._words.add(f"{self._header}{text}{mark}", ())
            return
        self._words.called()
        for name, arguments in made if self._parallel else made[: not self.calls]:
            tool = self._tools.get(name)
            call = Call(
                self._new_id(len(self.calls)),
                tool.name if tool else name,
                arguments,
                tool.namespace if tool else "",
            )
            index, self.calls = len(self.calls), (*self.calls, call)
            yield CallBegun(index, call.call_id, call.name, call.namespace)
            yield CallArguments(index, arguments)
            yield CallEnded(index, arguments)


def _made(call: Mapping[str, Any]) -> tuple[str, str]:
    """A call's name, and its arguments as text."""
    name, arguments = call["name"], call.get("arguments", {})
    if not isinstance(name, str):
        raise TypeError(f"a call's name is text, not {name!r}")
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    read = json.loads(written)
    if not isinstance(read, dict):
        raise TypeError(f"a call's arguments are a JSON object, not {written}")
    # NaN, and what is too large for a float, are no JSON; half a surrogate goes into no answer.
    json.dumps(read, ensure_ascii=False, allow_nan=False).encode()
    return name, written


def _described(name: str, tool: Tool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": dict(tool.parameters)}}
