"""Input items as messages, and as they are given back. Pure: any thread."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvactors.actors.frontends.server.exchange.inquiry import Call, Message, Role
from kvactors.actors.frontends.server.wire.chat_body import text_of
from kvactors.actors.frontends.server.wire.errors import refused

__all__ = ["Item", "given_back", "listed", "messages_of", "page", "unsaid"]

Item = dict[str, Any]
MOST_LISTED = 100
_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}
_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
# What OpenAI's own servers, or a client's own shell, did: it holds nothing for anybody else.
_OTHERS = (
    "apply_patch_call",
    "apply_patch_call_output",
    "additional_tools",
    "code_interpreter_call",
    "compaction",
    "compaction_trigger",
    "computer_call",
    "computer_call_output",
    "file_search_call",
    "image_generation_call",
    "local_shell_call",
    "local_shell_call_output",
    "mcp_approval_request",
    "mcp_approval_response",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
    "shell_call",
    "shell_call_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
)


def listed(given: str | Sequence[Any] | None, where: str) -> list[Item]:
    """What was `given` in the field `where`, as a list of items. Raises Failure."""
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    for index, item in enumerate(given or ()):
        if not isinstance(item, dict):
            raise refused(f"{where}.{index}", f"an item is an object, not {type(item).__name__}")
        if not isinstance(item.get("id") or "", str):
            raise refused(f"{where}.{index}.id", "an id is text")
    return list(given or ())


def unsaid(given: str | Iterable[Item] | None) -> list[str]:
    """The kinds of those items that say nothing here."""
    items = () if isinstance(given, str) else given or ()
    kinds = (item.get("type") for item in items if isinstance(item, dict))
    return list(dict.fromkeys(kind for kind in kinds if kind in _OTHERS))


def messages_of(items: Iterable[Item], where: str) -> Iterator[Message]:
    """The messages that `items` in the field `where` are. What an assistant thought, said and
    called in a row is one message, as it was one answer. Raises Failure."""
    answer: Message | None = None
    last, names = "", dict[str, str]()
    for index, item in enumerate(items):
        if item.get("type") in _OTHERS:
            continue
        kind, message = _message(f"{where}.{index}", item, names)
        ours = message.role == "assistant"
        if answer is not None and (not ours or kind == last == "message"):
            yield answer
            answer = None
        if not ours:
            yield message
        elif answer is None:
            answer = message
        else:
            answer = replace(
                answer,
                text=answer.text + message.text,
                calls=answer.calls + message.calls,
                thinking=answer.thinking + message.thinking,
            )
        last = kind
    if answer is not None:
        yield answer


def _message(where: str, item: Item, names: dict[str, str]) -> tuple[str, Message]:
    """An item's kind, and it alone as a message; `names` are those of the calls so far."""
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind == "message":
        role = _ROLES.get(str(item.get("role")))
        if role is None:
            told = f"one of {', '.join(_ROLES)}, not {item.get('role')!r}"
            raise refused(f"{where}.role", told)
        return kind, Message(role, text_of(item.get("content"), f"{where}.content"))
    if kind == "reasoning":
        return kind, Message("assistant", thinking=_thought(item, where))
    if kind in _CALLS:
        call = _call(where, item, "arguments" if kind == "function_call" else "input")
        names[call.call_id] = call.name
        return "call", Message("assistant", calls=(call,))
    if kind in _RESULTS:
        call_id = _named(item, "call_id", where)
        text = text_of(item.get("output"), f"{where}.output")
        return "result", Message("tool", text, call_id=call_id, name=names.get(call_id, ""))
    raise refused(
        f"{where}.type",
        f"message, reasoning, {', '.join(_CALLS + _RESULTS)} are understood here, not {kind!r}",
    )


def _thought(item: Item, where: str) -> str:
    """What a reasoning item says: its text, or else its summary."""
    return text_of(item.get("content") or item.get("summary"), f"{where}.content")


def _call(where: str, item: Item, field: str) -> Call:
    arguments = item.get(field)
    if not isinstance(arguments, str):
        raise refused(f"{where}.{field}", "text is needed")
    if field == "input":
        arguments = json.dumps({"input": arguments}, ensure_ascii=False)
    return Call(
        _named(item, "call_id", where),
        _named(item, "name", where),
        arguments,
        str(item.get("namespace") or ""),
    )


def _named(item: Item, field: str, where: str) -> str:
    value = item.get(field)
    if not isinstance(value, str) or not value:
        raise refused(f"{where}.{field}", "a name is needed")
    return value


# -- as they are given back ------------------------------------------------------------


def given_back(items: Iterable[Item], prefix: str) -> list[Item]:
    """`items` as lists of them have them: whole, and with ids, of a `prefix` where they had
    none."""
    return [_whole(item, f"{prefix}_{index}") for index, item in enumerate(items)]


def _whole(item: Item, fresh_id: str) -> Item:
    kind = item.get("type") or "message"
    whole = {
        **item,
        "type": kind,
        "id": item.get("id") or f"{_PREFIXES.get(kind, 'it')}_{fresh_id}",
    }
    if kind == "reasoning":
        return {"summary": [], **whole}
    whole.setdefault("status", "completed")
    if kind == "message":
        whole["content"] = _parts(item)
    return whole


def page(
    items: Sequence[Item], *, after: str = "", limit: int = MOST_LISTED, order: str = "desc"
) -> Item:
    """At most `limit` of `items`, behind the one with the id `after`, in an `order`. Raises
    Failure."""
    if order not in ("asc", "desc"):
        raise refused("order", f"asc or desc, not {order!r}")
    ordered = list(items) if order == "asc" else list(reversed(items))
    ids = [item["id"] for item in ordered]
    if after and after not in ids:
        raise refused("after", f"no item has the id {after!r}")
    begin = ids.index(after) + 1 if after else 0
    end = begin + max(1, min(limit, MOST_LISTED))
    return {
        "object": "list",
        "data": ordered[begin:end],
        "first_id": next(iter(ids[begin:end]), None),
        "last_id": next(reversed(ids[begin:end]), None),
        "has_more": end < len(ids),
    }


_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}


def _parts(message: Mapping[str, Any]) -> list[Item]:
    content = message.get("content")
    if isinstance(content, list):
        return content
    said = {"text": content or ""}
    if message.get("role") == "assistant":
        return [{"type": "output_text", **said, "annotations": [], "logprobs": []}]
    return [{"type": "input_text", **said}]
