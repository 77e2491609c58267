"""Tools, calls and results in the words of a chat template. Any thread."""

import re
from collections.abc import Sequence
from typing import Any

from kvactors.core.conversation.hashing import common_prefix
from kvactors.core.conversation.template_text import ANSWER, QUESTION, TemplateText
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import TemplateError

__all__ = [
    "CHANNEL",
    "begun_with",
    "called",
    "called_at",
    "end_of_calls",
    "headers",
    "last_answer",
    "result_of",
    "with_calls",
    "with_tools",
]

_SYSTEM = "kvactors probe system"
# What names the channel of a message in its header.
CHANNEL = "<|channel|>"
# A message begins where the answer does, or behind another one.
_HEADER = re.compile(r"(?:^|<\|end\|>|<\|call\|>)([^\n]*?)<\|message\|>")
# In a model's own form, or as JSON in the marks of that.
_CALL = re.compile(r'<\|tool_call>(?:call:|\s*\{"name": ")([\w.-]+)')
_TO = re.compile(r"\bto=(?:functions\.)?([^\s<]+)")


def with_tools(chat: TemplateText, system: str, tools: Sequence[dict[str, Any]]) -> str | None:
    """The system prompt that the template of `chat` makes of a `system` prompt and of `tools`, in
    the form that chat templates take; None if it writes nothing of them there."""
    probe = [{"role": "system", "content": _SYSTEM}, QUESTION]
    asked = [{"role": "system", "content": system}, QUESTION]
    try:
        head, _, tail = chat.render(probe, answer=True).partition(_SYSTEM)
        whole = chat.render(asked, answer=True, tools=list(tools))
        told = chat.render(probe, answer=True, tools=list(tools))
    except TemplateError:
        return None
    if tail and whole.startswith(head) and whole.endswith(tail):
        written = whole[len(head) : len(whole) - len(tail)]
        return None if written == system else written
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


def result_of(chat: TemplateText, name: str, text: str, *, answer: bool) -> str:
    """What the template of `chat` adds behind a call of the tool `name` for its result, `text`;
    `answer`: the assistant is to go on. Raises TemplateError."""
    called = [QUESTION, _calling("", [{"type": "function", "function": _no_arguments(name)}])]
    before = chat.render(called, answer=False)
    result = {"role": "tool", "name": name, "content": text}
    whole = chat.render([*called, result], answer=answer)
    if not whole.startswith(before):
        raise TemplateError("the chat template rewrites a call that its result follows")
    return whole[len(before) :]


def end_of_calls(chat: TemplateText) -> tuple[int, ...]:
    """The special token that the template of `chat` writes after a call, or none."""
    calls = [{"type": "function", "function": _no_arguments("probe")}]
    try:
        return chat.special_at_end(chat.render([QUESTION, _calling("", calls)], answer=False))
    except TemplateError:
        return ()


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


def called_at(said: str, place: int) -> str:
    """The tool that the call at this `place` of an answer is to, the last one beyond: as gpt-oss
    writes calls, or Gemma 4."""
    names = [tool for tool in map(called, headers(said)) if tool] or _CALL.findall(said)
    return names[: place + 1][-1] if names else "tool"


def headers(text: str) -> list[str]:
    """The headers of an answer's messages, where each has one."""
    return _HEADER.findall(text)


def _calling(text: str, calls: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"role": "assistant", "content": text, "tool_calls": list(calls)}


def _no_arguments(name: str) -> dict[str, Any]:
    return {"name": name, "arguments": {}}
