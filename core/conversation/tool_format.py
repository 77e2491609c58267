"""Tools, calls and results in the words of a chat template. Any thread."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.conversation.token_text import ANSWER, QUESTION, TemplateText
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import TemplateError

__all__ = [
    "CHANNEL",
    "Made",
    "begun_with",
    "called",
    "called_at",
    "ends_of_calls",
    "headers",
    "last_answer",
    "names_results",
    "result_of",
    "said_to_user",
    "told_by_user",
    "with_calls",
    "with_tools",
]

_SYSTEM = "kvactors probe system"
# Of as many characters as Mistral's templates want.
_NO_ID = "000000000"
# What names the channel of a message in its header.
CHANNEL = "<|channel|>"
# A message begins where the answer does, or behind another one.
_HEADER = re.compile(r"(?:^|<\|end\|>|<\|call\|>)([^\n]*?)<\|message\|>")
# Calls as Gemma 4, Mistral's models and Kimi make them, or as JSON in any marks.
_CALLS = (
    re.compile(r'<\|?tool_call>(?:call:|\s*\{"name": ")(?P<name>[\w.-]+)(?P<id>)'),
    re.compile(r"(?P<name>[\w.-]+)(?:\[CALL_ID\](?P<id>[\w-]+))?\s*\[ARGS\]"),
    re.compile(r"<\|tool_call_begin\|>\s*(?P<id>functions\.(?P<name>[\w.-]+):\d+)"),
    re.compile(r'"name": "(?P<name>[\w.-]+)", "arguments": .*?, "id": "(?P<id>[\w-]+)"', re.DOTALL),
    re.compile(r'"name": "(?P<name>[\w.-]+)", "arguments": (?P<id>)'),
)
_TO = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


class Made(NamedTuple):
    """A call that was made: of the tool of this name, by this id."""

    name: str
    call_id: str = _NO_ID


_PROBE = Made("kvactors_probe", "k7v4a2c9t")


def with_tools(chat: TemplateText, system: str, tools: Sequence[dict[str, Any]]) -> str | None:
    """The system prompt that the template of `chat` makes of a `system` prompt and of `tools`, in
    the form that chat templates take; None if it writes nothing of them there."""
    probe = [{"role": "system", "content": _SYSTEM}, QUESTION]
    asked = [{"role": "system", "content": system}, QUESTION]
    try:
        head, _, tail = chat.render(probe, answer=True).partition(_SYSTEM)
        whole = chat.render(asked, answer=True, tools=list(tools))
        if tail and whole.startswith(head) and whole.endswith(tail):
            written = whole[len(head) : len(whole) - len(tail)]
            return None if written == system else written
        told = chat.render(probe, answer=True, tools=list(tools))
    except TemplateError:
        return None
    # It may write of them in front of the prompt as well; what it says there stands at the end.
    first, _, behind = told.partition(_SYSTEM)
    same, tail = common_prefix(head, first), tail.strip()
    listed = behind.strip().removesuffix(tail).strip()
    if not (tail and listed and behind.strip().endswith(tail) and first.endswith(head[same:])):
        return None
    before = first[same : len(first) - len(head) + same]
    parts = (system, listed, before.strip())
    return "\n\n".join(part for part in parts if part)


def begun_with(chat: TemplateText, system: str, tools: Sequence[dict[str, Any]]) -> str | None:
    """What the template of `chat` writes before the first question, with a `system` prompt ("" for
    none) and `tools`; None if it writes nothing of them there."""
    asked = [{"role": "system", "content": system}, QUESTION] if system else [QUESTION]
    try:
        plain = chat.render(asked, answer=True).partition(QUESTION["content"])
        told = chat.render(asked, answer=True, tools=list(tools)).partition(QUESTION["content"])
    except TemplateError:
        return None
    named = all(tool["function"]["name"] in told[0] for tool in tools)
    return told[0] if named and told[0] != plain[0] and told[1:] == plain[1:] else None


def with_calls(chat: TemplateText, text: str, calls: Sequence[dict[str, Any]]) -> str | None:
    """What the template of `chat` makes of an answer with `text` and tool `calls`, in the form that
    chat templates take; None if it writes nothing of them."""
    try:
        before = chat.render([QUESTION], answer=True)
        plain = chat.render([QUESTION, ANSWER], answer=False).removeprefix(before)
        whole = chat.render([QUESTION, _calling(text, calls)], answer=False)
    except TemplateError:
        return None
    lead, _, ending = plain.rpartition(ANSWER["content"])
    written = whole[len(before) :].removeprefix("" if lead.strip() else lead)
    written = written.removesuffix(ending)
    return written if whole.startswith(before) and written != text else None


def result_of(chat: TemplateText, call: Made, text: str, *, answer: bool) -> str:
    """What the template of `chat` adds behind a `call` for its result, `text`; `answer`: the
    assistant is to go on. Raises TemplateError."""
    made = [QUESTION, _calling("", [_made(call)])]
    before = chat.render(made, answer=False)
    result = {"role": "tool", "name": call.name, "tool_call_id": call.call_id, "content": text}
    whole = chat.render([*made, result], answer=answer)
    if not whole.startswith(before):
        raise TemplateError("the chat template rewrites a call that its result follows")
    return whole[len(before) :]


def names_results(chat: TemplateText) -> bool:
    """Whether the result of a call says which one it is of, by the template of `chat`."""
    try:
        told = result_of(chat, _PROBE, _SYSTEM, answer=True)
    except TemplateError:
        return False
    return _SYSTEM in told and (_PROBE.name in told or _PROBE.call_id in told)


def ends_of_calls(chat: TemplateText) -> tuple[str, tuple[int, ...]]:
    """The special token that the template of `chat` writes after a call, or none, and what special
    token's text stands before that."""
    try:
        made = chat.render([QUESTION, _calling("", [_made(_PROBE)])], answer=False).rstrip()
    except TemplateError:
        return "", ()
    end = chat.special_at_end(made)
    return chat.decode(chat.special_at_end(made.removesuffix(chat.decode(end)))), end


def told_by_user(result: str) -> tuple[str, str]:
    """The role and text that a tool's `result` has where the template has none for it."""
    return "user", f"<tool_response>\n{result}\n</tool_response>"


def called(header: str) -> str:
    """The tool that a message with this `header` is to; "" if to none."""
    to = _TO.search(header)
    return to[1] if to else ""


def last_answer(turns: Sequence[Turn]) -> tuple[str, int]:
    """What the assistant said last, and how many results of tools were told since."""
    results = 0
    for turn in reversed(turns):
        if turn.role == "assistant":
            return turn.text, results
        results += turn.role == "tool"
    return "", results


def called_at(said: str, place: int) -> Made:
    """The call at this `place` of what was `said`, the last one beyond."""
    named = [Made(tool) for tool in map(called, headers(said)) if tool]
    found = next(filter(None, ([*form.finditer(said)] for form in _CALLS)), [])
    calls = named or [Made(made["name"], made["id"] or _NO_ID) for made in found]
    return calls[: place + 1][-1] if calls else Made("tool")


def headers(text: str) -> list[str]:
    """The headers of an answer's messages, where each has one."""
    return _HEADER.findall(text)


def said_to_user(text: str) -> str:
    """What an answer's `text` says to who asked, where each message has a header: neither what is
    analysed nor calls, in paragraphs. A text without headers is all said, half a header is not."""
    found = [*_HEADER.finditer(text)]
    if not found:
        return "" if text.startswith(CHANNEL) or CHANNEL.startswith(text) else text
    ends = [*(header.start() for header in found[1:]), len(text)]
    said = [
        re.sub(r"<\|(end|call|return)\|>.*$", "", text[header.end() : end], flags=re.DOTALL)
        for header, end in zip(found, ends, strict=True)
        if "analysis" not in header[1] and not called(header[1])
    ]
    return "\n\n".join(filter(None, said))


def _calling(text: str, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "tool_calls": list(calls)}


def _made(call: Made) -> dict[str, Any]:
    function = {"name": call.name, "arguments": {}}
    return {"id": call.call_id, "type": "function", "function": function}
