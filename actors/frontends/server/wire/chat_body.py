"""What a chat completion asks: its body as an Inquiry."""

import json
import secrets
from collections.abc import Mapping
from typing import Any, Literal

from fastapi import Request
from pydantic import Field

from kvactors.actors.frontends.server.exchange.inquiry import (
    Call,
    Form,
    Inquiry,
    Manner,
    Message,
    Role,
    Tool,
    ToolChoice,
)
from kvactors.actors.frontends.server.wire.asking import client_of
from kvactors.actors.frontends.server.wire.errors import refused
from kvactors.actors.frontends.server.wire.guided import Guided
from kvactors.actors.frontends.server.wire.reading import (
    Listed,
    Seed,
    Stops,
    manner_of,
    name_of,
    of_provider,
    unmet,
)
from kvactors.core.schedule.sampling import Sampling

__all__ = ["MOST_ANSWERS", "MOST_TOKENS", "ChatBody", "inquiry_of", "mode_of", "text_of"]

MOST_TOKENS = 4096
MOST_ANSWERS = 16
# Kinds of tool choices that are objects.
_CHOICES = (None, "function", "allowed_tools")
_MODES: dict[str | None, Literal["auto", "none", "required"]] = {
    None: "auto",
    "auto": "auto",
    "none": "none",
    "required": "required",
}


class ChatBody(Guided):
    """A chat completion's body; what is not here is ignored."""

    messages: Listed[dict[str, Any]] = Field(min_length=1)
    model: str = ""
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    tools: Listed[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    n: int | None = Field(None, ge=1, le=MOST_ANSWERS)
    stop: str | Stops | None = None
    seed: Seed | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    prompt_cache_key: str | None = None
    promptCacheKey: str | None = None
    reasoning_effort: str | None = None
    reasoning: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None


def inquiry_of(request: Request, body: ChatBody) -> Inquiry:
    """What a chat completion's `body` asks. Raises Failure."""
    stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
    tools = tuple(_tool(i, tool) for i, tool in enumerate(body.tools or ()) if _is_function(tool))
    choice, allowed = _tool_choice(body.tool_choice)
    sampling = Sampling(
        max_tokens=body.max_completion_tokens or body.max_tokens or MOST_TOKENS,
        **body.filters(),
        # Without a seed the same question has another answer; with one, whoever is asked.
        seed=secrets.randbits(31) if body.seed is None else body.seed,
        seed_alone=True,
        stop=tuple(text for text in stop if text),
    )
    messages = tuple(_message(i, message) for i, message in enumerate(body.messages))
    wanted, role = body.continue_final_message, messages[-1].role
    if wanted is not None and wanted != (role == "assistant"):
        where = f"messages.{len(messages) - 1}.role"
        raise refused(where, f"{role} does not go with continue_final_message {wanted}")
    return Inquiry(
        messages,
        client_of(request, body.prompt_cache_key or body.promptCacheKey),
        tuple(tool for tool in tools if allowed is None or tool.name in allowed),
        # Those that are skipped cannot be required.
        choice if tools or not body.tools else ToolChoice(),
        parallel=body.parallel_tool_calls is not False,
        sampling=sampling,
        open_end=body.max_completion_tokens is None and body.max_tokens is None,
        form=_form(body),
        top_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        manner=_manner(body),
    )


def _manner(body: ChatBody) -> Manner:
    told, effort = body.chat_template_kwargs, body.reasoning_effort
    if effort is not None:
        return manner_of(told, "reasoning_effort", effort)
    # As OpenRouter has it.
    asked = body.reasoning or {}
    enabled, most = asked.get("enabled"), asked.get("max_tokens")
    if not isinstance(enabled, bool | None):
        raise refused("reasoning.enabled", f"true or false, not {enabled!r:.40}")
    if most is not None and (type(most) is not int or most < 0):
        raise refused("reasoning.max_tokens", f"a whole number from 0 on, not {most!r:.40}")
    thinks = enabled if most is None else most > 0 and enabled is not False
    effort = "none" if thinks is False else asked.get("effort")
    return manner_of(told, "reasoning.effort", effort, thinks=thinks)


def skipped(body: ChatBody) -> list[str]:
    """Tools of kinds that are no functions, names of who speaks, and what of a schema is not held
    to."""
    kinds = (f"tools: {tool['type']}" for tool in body.tools or () if not _is_function(tool))
    found = list(dict.fromkeys(kinds))
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") not in _CHOICES:
        found.append(f"tool_choice: {choice['type']}")
    if any(
        said.get("name") and _ROLES.get(str(said.get("role"))) != "tool" for said in body.messages
    ):
        found.append("messages.name")
    found += unmet(body.reasoning, "effort", "enabled")
    return found + body.unguided() + unheld("response_format", _form(body))


def _is_function(tool: Mapping[str, Any]) -> bool:
    return (tool.get("type") or "function") == "function"


_ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}


def _message(index: int, message: Mapping[str, Any]) -> Message:
    where = f"messages.{index}"
    role = _ROLES.get(str(message.get("role")))
    if role is None:
        raise refused(f"{where}.role", f"one of {', '.join(_ROLES)}, not {message.get('role')!r}")
    text = text_of(message.get("content"), f"{where}.content")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise refused(f"{where}.tool_calls", "a list of calls")
    made = [_call(f"{where}.tool_calls.{i}", call) for i, call in enumerate(calls)]
    if (old := message.get("function_call")) is not None:
        # As calls were before they had ids: one, and its result is the message behind it.
        made.append(_call(f"{where}.function_call", {"function": old}))
    return Message(
        role,
        text,
        tuple(made),
        str(message.get("tool_call_id") or ""),
        str(message.get("name") or ""),
        str(message.get("reasoning_content") or message.get("reasoning") or ""),
    )


def text_of(content: Any, where: str) -> str:
    """The text of a message's content: a string, parts of text, or nothing. Raises Failure."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise refused(where, "text or a list of text parts")
    return "".join(_part(f"{where}.{i}", part) for i, part in enumerate(content))


def _part(where: str, part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind == "refusal":
        return str(part.get("refusal", ""))
    raise refused(where, f"only text is understood here, not {kind}")


def _call(where: str, call: Any) -> Call:
    try:
        function = call["function"]
        said = function["arguments"] or "{}"
        arguments = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
        return Call(str(call.get("id") or ""), str(function["name"]), arguments)
    except (TypeError, KeyError, AttributeError):
        raise refused(where, "a function call with name and arguments") from None


def _tool(index: int, tool: Mapping[str, Any]) -> Tool:
    where, function = f"tools.{index}", tool.get("function")
    if not isinstance(function, dict):
        raise refused(f"{where}.function", "a function with a name is needed")
    name = name_of(f"{where}.function", function)
    schema = function.get("parameters") or {}
    if not isinstance(schema, dict):
        raise refused(f"{where}.function.parameters", "a JSON schema is needed")
    strict = bool(function.get("strict"))
    return Tool(name, str(function.get("description") or ""), schema, strict)


def _tool_choice(choice: str | dict[str, Any] | None) -> tuple[ToolChoice, frozenset[str] | None]:
    """Whether tools are called, and the names of those that may be, None for all."""
    if not isinstance(choice, dict):
        return ToolChoice(mode_of("tool_choice", choice)), None
    if choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        listed = allowed.get("tools") if isinstance(allowed, dict) else None
        if not isinstance(allowed, dict) or not isinstance(listed, list):
            raise refused("tool_choice.allowed_tools", "a mode, and a list of tools")
        mode = mode_of("tool_choice.allowed_tools.mode", allowed.get("mode"))
        ours = [tool for tool in listed if not of_provider(tool)]
        # Those that are skipped cannot be required.
        return ToolChoice(mode if ours else "none"), frozenset(map(_named, ours))
    if choice.get("type") not in _CHOICES:
        return ToolChoice(), None
    return ToolChoice("required", _named(choice)), None


def _named(choice: Any) -> str:
    function = choice.get("function") if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise refused("tool_choice", "name the function, or say auto, none or required")
    return name


def mode_of(where: str, mode: Any) -> Literal["auto", "none", "required"]:
    """Whether tools are called, as a `mode` says in the field `where`. Raises Failure."""
    if not isinstance(mode, str | None) or mode not in _MODES:
        raise refused(where, f"auto, none, required or a function, not {mode!r}")
    return _MODES[mode]


def _form(body: ChatBody) -> Form | None:
    guided, asked = body.guided(), body.response_format
    kind = (asked or {}).get("type", "text")
    if asked is None or kind == "text":
        return guided
    if guided is not None:
        raise refused("response_format", "an answer has one form, and another one is given")
    if kind == "json_object":
        return Form()
    if kind == "json_schema":
        named = asked.get("json_schema")
        if not isinstance(named, dict) or not isinstance(named.get("schema"), dict):
            raise refused("response_format.json_schema.schema", "a JSON schema is needed")
        return Form(named["schema"], bool(named.get("strict")))
    raise refused("response_format.type", f"text, json_object or json_schema, not {kind!r}")


def unheld(where: str, form: Form | None) -> list[str]:
    """What an answer is not held to of a `form` in the field `where`."""
    return [f"{where}: {what}" for what in form.grammar.unheld] if form else []
