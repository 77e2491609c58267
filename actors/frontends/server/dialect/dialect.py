"""Dialect: what of an inquiry becomes a model's text, and what of its text becomes events.

The template's own form is taken where it has one: for tools, calls, results. Where it has none a
generic one stands, that of Hermes, which most models have seen: tools as JSON in the system prompt,
calls as JSON between two tags, results between two others in a user's turn.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from kvactors.actors.frontends.server.dialect.forms import (
    CallMarks,
    call_marks,
    channel_grammar,
    grammar_of,
    thought_before,
)
from kvactors.actors.frontends.server.dialect.marks import (
    Channels,
    Divides,
    Marks,
    called_in,
    calling,
)
from kvactors.actors.frontends.server.dialect.reader import Reader
from kvactors.actors.frontends.server.exchange.inquiry import Call, Inquiry, Message, Tool
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.tool_format import begun_with, told_by_user, with_calls, with_tools
from kvactors.core.schedule.grammar import Grammar

__all__ = ["Dialect", "full_name", "read_whole"]

_NOBODY = "kvactors probe role"
_GENERIC_MARKS = ("<tool_call>", "</tool_call>")
# Manners of a model that are kept.
_MOST_OTHERS = 64
# Mistral's models may give their calls ids, which mlx-lm takes for names.
_CALL_ID = re.compile(r"\[CALL_ID\][\w-]+")
_TOOLS = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


class Dialect:
    """That of one model, by its tokenizer and template, `chat`."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat
        self._others = dict[ChatFormat, Dialect]()

    def under(self, chat: ChatFormat) -> "Dialect":
        """That of the same model, whose template is told more in `chat`."""
        if chat is self.chat:
            return self
        other = self._others.get(chat)
        if other is None:
            if len(self._others) >= _MOST_OTHERS:
                self._others.clear()
            other = self._others[chat] = Dialect(chat)
        return other

    def system(self, text: str, tools: Sequence[Tool], first: str = "user") -> str | None:
        """The system prompt that says `text` and names the `tools`, of a conversation that `first`
        begins; None for none."""
        if not tools:
            return text or None
        asked = self._begins_with_tools and first == "user"
        begun = begun_with(self.chat, text, _all(tools)) if asked else None
        if begun is not None and self.chat.is_beginning(begun):
            return begun
        return self.told(text, tools)

    def told(self, text: str, tools: Sequence[Tool]) -> str:
        """Any `text`, and `tools`: what a prompt says of them."""
        written = with_tools(self.chat, text, _all(tools)) if self._writes_tools else None
        if written is not None:
            return written
        listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in _all(tools))
        return "\n\n".join(part for part in (text, _TOOLS.format(listed)) if part)

    def turn(self, message: Message) -> tuple[str, str]:
        """The role and text of a turn that says a message."""
        role, text = message.role, message.text
        if role == "assistant":
            return role, self._answer(text, message.calls) if message.calls else text
        if role in self._roles or role == "user":
            return role, text
        if role == "tool":
            return told_by_user(text)
        return "user", f"<system>\n{text}\n</system>"

    def beginning(self, message: Message, inquiry: Inquiry) -> tuple[str, str]:
        """As `turn`, of the answer to an `inquiry` that is gone on with: it is no thought, though
        the template begin one there."""
        role, text = self.turn(message)
        thinks = self._thinks_first(inquiry)
        return role, f"{self.chat.think_marks[1]}\n\n{text}" if thinks else text

    def reader(self, inquiry: Inquiry, new_id: Callable[[int], str]) -> Reader:
        """Who reads the answer to an inquiry; `new_id` makes the id of the call at a place."""
        names = {full_name(tool): tool for tool in inquiry.tools}
        marks = self._marks(inquiry)
        return Reader(marks, self._parse, names, new_id, parallel=inquiry.parallel)

    def _marks(self, inquiry: Inquiry) -> Divides:
        if self.chat.header:
            return Channels(calls=_may_call(inquiry))
        calls = self._calls if _may_call(inquiry) else ()
        # What has a form is no thought, though the template may begin one.
        thoughts = ("", "") if inquiry.formed else self.chat.think_marks
        return Marks(calls, *thoughts, self._thinks_first(inquiry))

    def _thinks_first(self, inquiry: Inquiry) -> bool:
        """Whether the template begins a thought where the answer to an inquiry begins."""
        return self.chat.opens_thought and not inquiry.formed

    def stops(self, inquiry: Inquiry) -> tuple[str, ...]:
        """Marks behind which the answer to an inquiry ends, since it may make one call only."""
        # Where each message has a header a call ends the answer.
        if self.chat.header or inquiry.parallel or not _may_call(inquiry):
            return ()
        return tuple(end for _, end in self._calls if end)

    def grammar(self, inquiry: Inquiry) -> Grammar | None:
        """What the answer to an inquiry must look like, if it says so. Raises InvalidInput."""
        names = {full_name(tool): tool for tool in inquiry.tools}
        if self.chat.header:
            return channel_grammar(inquiry, names)
        return grammar_of(inquiry, names, *self._terms)

    @cached_property
    def _terms(self) -> tuple[CallMarks, str]:
        """Those of a grammar around calls, and for a thought before an answer."""
        thinks = map(self._special, self.chat.think_marks)
        thought = thought_before(*thinks, opened=self.chat.opens_thought)
        return call_marks(self._calls, self._special), thought

    def _special(self, mark: str) -> int | None:
        """The token that a mark is, if that is no text: to llguidance no special token is any, and
        no added one that looks like a tag (Qwen3's, which its file calls none)."""
        ids = self.chat.encode(mark)
        tag = mark.startswith("<") and mark.endswith(">")
        return ids[0] if len(ids) == 1 and (tag or self.chat.special_in(mark)) else None

    @cached_property
    def _calls(self) -> tuple[tuple[str, str], ...]:
        """What calls begin and end with: as the model is told, and as it may know better."""
        tokenizer, told = self.chat.tokenizer, _GENERIC_MARKS
        if not self._native:
            return (told,)
        own = str(tokenizer.tool_call_start), str(tokenizer.tool_call_end or "")
        if own == told:
            return (own,)
        # Of tools that the template cannot write, were it one schema, the model is told otherwise.
        natively = self._writes_tools or self._begins_with_tools
        return (own, told) if natively else (told, own)

    @cached_property
    def _writes_tools(self) -> bool:
        """Whether the template writes tools where a system prompt can say them."""
        known = self._native or bool(self.chat.header)
        return known and with_tools(self.chat, _NOBODY, _all([Tool("probe")])) is not None

    @cached_property
    def _begins_with_tools(self) -> bool:
        """Whether it writes them where none can, before the first question."""
        if self._writes_tools or not self._native:
            return False
        begun = begun_with(self.chat, "", _all([Tool("probe")]))
        return begun is not None and self.chat.is_beginning(begun)

    @property
    def _native(self) -> bool:
        return bool(getattr(self.chat.tokenizer, "has_tool_calling", False))

    @cached_property
    def _roles(self) -> frozenset[str]:
        """Roles that the template writes, of those that not all do. One that knows of no tools and
        writes any role at all has none for their results."""
        if not self.chat.has_template:
            return frozenset()
        told = self._writes_tools or self._begins_with_tools
        tools = told or not self.chat.knows(_NOBODY)
        roles = ("system", "tool") if tools else ("system",)
        known = [role for role in roles if self.chat.knows(role)]
        # A result that stands alone is refused there.
        return frozenset((*known, "tool") if self.chat.names_results else known)

    def _answer(self, text: str, calls: Sequence[Call]) -> str:
        """What the assistant said and called, as it would have written it."""
        if self.chat.header:
            told = [f"<|channel|>commentary<|message|>{text}<|end|>"] if text else []
            told += [calling(full_name(call), call.arguments or "{}") for call in calls]
            return "<|start|>assistant".join(told)
        asked = [(_short(call.call_id), full_name(call), _arguments(call)) for call in calls]
        if self._writes_tools or self._begins_with_tools:
            native = [
                {"id": made, "type": "function", "function": {"name": n, "arguments": a}}
                for made, n, a in asked
            ]
            if (written := with_calls(self.chat, text, native)) is not None:
                # Some write calls alone.
                return written if text.strip() in written else text + written
        start, end = _GENERIC_MARKS
        written = "\n".join(
            f"{start}\n{json.dumps({'name': n, 'arguments': a}, ensure_ascii=False)}\n{end}"
            for _, n, a in asked
        )
        return f"{text}\n{written}" if text else written

    def _parse(self, text: str, tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The calls that a text between the marks makes. Raises whatever the parser does."""
        if self.chat.header:
            return [called_in(text)]
        try:
            found = json.loads(text)
        except ValueError:
            if not self._native:
                raise
            found = self.chat.tokenizer.tool_parser(_CALL_ID.sub("", text), tools)
        return list(found) if isinstance(found, list) else [found]


def read_whole(dialect: Dialect, inquiry: Inquiry, text: str) -> Reader:
    """Who has read the whole `text` of an answer to an `inquiry` in a `dialect`."""
    reader = dialect.reader(inquiry, str)
    for _ in (*reader.feed(text), *reader.end(cut=True)):
        pass
    return reader


def _may_call(inquiry: Inquiry) -> bool:
    return bool(inquiry.tools) and inquiry.choice.mode != "none"


def full_name(named: Tool | Call) -> str:
    """The name that the model calls a tool by: with its namespace, if it has one."""
    return f"{named.namespace}__{named.name}" if named.namespace else named.name


def _all(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    return [_described(tool) for tool in tools]


def _described(tool: Tool) -> dict[str, Any]:
    function = {
        "name": full_name(tool),
        "description": tool.description,
        "parameters": dict(tool.parameters) or {"type": "object", "properties": {}},
    }
    return {"type": "function", "function": function}


def _short(call_id: str) -> str:
    """An id of nine letters and digits, as Mistral's templates want."""
    return "".join(filter(str.isalnum, call_id))[-9:].rjust(9, "0")


def _arguments(call: Call) -> Any:
    try:
        return json.loads(call.arguments or "{}")
    except ValueError:
        return call.arguments
