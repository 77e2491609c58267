"""What a response is asked with: its body as an Inquiry.

`instructions` are the system prompt, or else what a first developer message says: Codex has more of
them, and moves those behind the first when it compacts. Behind a previous response instructions
replace those that stood there: where they differ they are told at the end of what is known, which
moves nothing; where there are none, those stand.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from pydantic import Field

from kvactors.actors.frontends.server.exchange.inquiry import (
    Form,
    Inquiry,
    Message,
    Tool,
    ToolChoice,
)
from kvactors.actors.frontends.server.wire.asking import client_of
from kvactors.actors.frontends.server.wire.chat_body import MOST_TOKENS, mode_of, unheld
from kvactors.actors.frontends.server.wire.errors import refused
from kvactors.actors.frontends.server.wire.reading import (
    Drawn,
    Listed,
    manner_of,
    name_of,
    of_provider,
    unmet,
)
from kvactors.actors.frontends.server.wire.responses.items import Item, listed, messages_of, unsaid
from kvactors.core.schedule.sampling import Sampling

__all__ = ["Past", "ResponseBody", "inquiry_of", "skipped"]

_REPLACED = "From here on these instructions stand in place of the earlier ones:\n\n{}"
_LOGPROBS = "message.output_text.logprobs"


class ResponseBody(Drawn):
    """A response's body; what is not here is ignored."""

    input: str | Listed[Any] | None = None
    model: str = ""
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    store: bool | None = None
    stream: bool | None = None
    tools: Listed[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: Listed[str] | None = None
    metadata: dict[str, Any] | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    top_logprobs: int | None = Field(None, ge=0, le=20)
    prompt_cache_key: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def sums_up(self) -> bool:
        """Whether its client reads summaries of what is thought."""
        return (self.reasoning or {}).get("summary") in ("auto", "concise", "detailed")


@dataclass(frozen=True, slots=True)
class Past:
    """What comes before a request: the answer that it `goes_on` and the instructions that stand
    there, or the `items` of a conversation."""

    goes_on: str = ""
    instructions: str = ""
    items: tuple[Item, ...] = ()


def inquiry_of(request: Request, body: ResponseBody, past: Past) -> Inquiry:
    """What the `body` of a `request` asks behind its `past`. Raises Failure."""
    if isinstance((body.model_extra or {}).get("prompt"), dict):
        # It is most of what is asked, and stands with OpenAI.
        raise refused("prompt", "no prompts are kept here: send its instructions and its input")
    said = [
        *messages_of(past.items, "conversation.items"),
        *messages_of(listed(body.input, "input"), "input"),
    ]
    if not said:
        raise refused("input", "there is nothing to answer: give text, or a list of items")
    choice, allowed = _tool_choice(body.tool_choice)
    given = body.tools or ()
    tools = [one for i, tool in enumerate(given) for one in _tools(f"tools.{i}", tool)]
    if given and not tools:
        # Those that are skipped cannot be required.
        choice = ToolChoice()
    wanted = _LOGPROBS in (body.include or ())
    effort = (body.reasoning or {}).get("effort")
    return Inquiry(
        (*_instructions(body, past), *said),
        client_of(request, body.prompt_cache_key),
        tuple(tool for tool in tools if allowed is None or tool.name in allowed),
        choice,
        parallel=body.parallel_tool_calls is not False,
        sampling=Sampling(
            max_tokens=body.max_output_tokens or MOST_TOKENS,
            **body.filters(),
        ),
        form=_form((body.text or {}).get("format")),
        top_logprobs=(body.top_logprobs or 0) if wanted else None,
        open_end=body.max_output_tokens is None,
        goes_on=past.goes_on,
        manner=manner_of(body.chat_template_kwargs, "reasoning.effort", effort),
        one_prompt=True,
    )


def skipped(body: ResponseBody) -> list[str]:
    """What of a `body`'s fields changes nothing: kinds of tools and items that only OpenAI's own
    servers run, wishes that nobody here fulfils, and what of a schema is not held to."""
    found = list[str]()
    for tool in body.tools or ():
        if tool.get("type") == "namespace":
            kinds = [inner.get("type") for inner in _list("tools", tool)]
            found += [f"tools: {kind}" for kind in kinds if kind != "function"]
        elif tool.get("type") != "function":
            found.append(f"tools: {tool.get('type')}")
    found += [f"input: {kind}" for kind in unsaid(body.input)]
    found += unmet(body.reasoning, "effort", "summary")
    found += ["text.verbosity"] if (body.text or {}).get("verbosity") else []
    found += [f"include: {wish}" for wish in body.include or () if wish != _LOGPROBS]
    choice = body.tool_choice
    if isinstance(choice, dict) and choice.get("type") not in ("function", "allowed_tools"):
        found.append(f"tool_choice: {choice.get('type')}")
    found += unheld("text.format", _form((body.text or {}).get("format")))
    return list(dict.fromkeys(found))


def _instructions(body: ResponseBody, past: Past) -> list[Message]:
    told = body.instructions or ""
    if not told or (past.goes_on and told == past.instructions):
        return []
    return [Message("system", _REPLACED.format(told) if past.instructions else told)]


def _tools(where: str, tool: Any, namespace: str = "") -> Iterator[Tool]:
    """The functions of a tool, those of a namespace under its name."""
    if not isinstance(tool, dict):
        raise refused(where, f"a tool is an object, not {type(tool).__name__}")
    kind = tool.get("type")
    if kind == "namespace" and not namespace:
        name = name_of(where, tool)
        for index, inner in enumerate(_list(where, tool)):
            yield from _tools(f"{where}.tools.{index}", inner, name)
    elif kind == "function":
        schema = tool.get("parameters") or {}
        if not isinstance(schema, dict):
            raise refused(f"{where}.parameters", "a JSON schema is needed")
        description, strict = str(tool.get("description") or ""), bool(tool.get("strict"))
        yield Tool(name_of(where, tool), description, schema, strict, namespace)


def _list(where: str, field: dict[str, Any]) -> list[Any]:
    tools = field.get("tools") or []
    if not isinstance(tools, list):
        raise refused(f"{where}.tools", "a list of tools")
    return tools


def _tool_choice(choice: str | dict[str, Any] | None) -> tuple[ToolChoice, frozenset[str] | None]:
    """Whether tools are called, and the names of those that may be, None for all."""
    if not isinstance(choice, dict):
        return ToolChoice(mode_of("tool_choice", choice)), None
    if choice.get("type") == "allowed_tools":
        mode, named = mode_of("tool_choice.mode", choice.get("mode")), _list("tool_choice", choice)
        ours = [tool for tool in named if not of_provider(tool)]
        names = frozenset(name_of("tool_choice.tools", tool) for tool in ours)
        # Those that are skipped cannot be required.
        return ToolChoice(mode if ours else "none"), names
    if choice.get("type") == "function":
        return ToolChoice("required", name_of("tool_choice", choice)), None
    # One that is skipped cannot be required.
    return ToolChoice(), None


def _form(asked: Any) -> Form | None:
    kind = asked.get("type") if isinstance(asked, dict) else "text" if asked is None else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Form()
    if kind == "json_schema":
        if not isinstance(asked.get("schema"), dict):
            raise refused("text.format.schema", "a JSON schema is needed")
        return Form(asked["schema"], bool(asked.get("strict")))
    raise refused("text.format.type", f"text, json_object or json_schema, not {kind!r}")
