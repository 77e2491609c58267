"""What a request to the Messages interface asks: its body as an Inquiry."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from fastapi import Request
from pydantic import Field

from kvactors.actors.frontends.server.exchange.inquiry import (
    Call,
    Form,
    Inquiry,
    Manner,
    Message,
    Tool,
    ToolChoice,
)
from kvactors.actors.frontends.server.wire.asking import client_of
from kvactors.actors.frontends.server.wire.errors import Failure, refused
from kvactors.actors.frontends.server.wire.known_tools import known_tool
from kvactors.actors.frontends.server.wire.reading import (
    Body,
    Drawn,
    Listed,
    Stops,
    manner_of,
    name_of,
)
from kvactors.core.schedule.sampling import Sampling

__all__ = ["CountBody", "MessagesBody", "inquiry_of", "skipped"]


# Blocks that say what Anthropic's own servers did or shall do, and hold nothing for anybody else.
_OTHERS = (
    "advisor_tool_result",
    "fallback",
    "mcp_tool_listing",
    "tool_addition",
    "tool_removal",
    "server_tool_use",
    "web_search_tool_result",
    "web_fetch_tool_result",
    "code_execution_tool_result",
    "bash_code_execution_tool_result",
    "text_editor_code_execution_tool_result",
    "tool_search_tool_result",
    "tool_reference",
    "mcp_tool_use",
    "mcp_tool_result",
    "container_upload",
)

# What is to be read, with its name.
_SOURCES = ("document", "search_result")


class CountBody(Body):
    """What tokens are counted of."""

    messages: Listed[dict[str, Any]] = Field(min_length=1)
    model: str = ""
    system: str | Listed[dict[str, Any]] | None = None
    tools: Listed[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    output_format: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def shows_thinking(self) -> bool:
        """Whether its client reads what is thought; unless it says otherwise."""
        return (self.thinking or {}).get("type") != "disabled"


class MessagesBody(CountBody, Drawn):
    """A request for a message; what is not here is ignored."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    thread: dict[str, Any] | None = None
    stop_sequences: Stops | None = None


def inquiry_of(request: Request, body: CountBody) -> Inquiry:
    """What a `body` asks. Raises Failure."""
    if isinstance(body, MessagesBody) and (body.thread or {}).get("type") == "continue":
        # What came before is not here: the client sends all of it, and its agent knows it.
        words = "thread: no conversation is held here; send all of its messages"
        raise Failure(404, words, "thread", reason="thread_not_found")
    system = _text(body.system, "system")
    messages = [Message("system", system)] if system else []
    for index, message in enumerate(body.messages):
        messages += _messages(f"messages.{index}", message)
    tools = tuple(
        _tool(f"tools.{i}", tool) for i, tool in enumerate(body.tools or ()) if _is_told(tool)
    )
    sampling = _sampling(body) if isinstance(body, MessagesBody) else Sampling()
    choice = body.tool_choice or {}
    named, others = choice.get("name"), [t for t in body.tools or () if not _is_told(t)]
    chosen = _tool_choice(choice)
    skips = named is not None and named in [tool.get("name") for tool in others]
    if others and (skips or len(others) == len(body.tools or ())):
        # Those that are skipped cannot be required.
        chosen = ToolChoice()
    return Inquiry(
        tuple(messages),
        client_of(request),
        tools,
        chosen,
        parallel=not choice.get("disable_parallel_tool_use"),
        sampling=sampling,
        form=_form(body),
        manner=_manner(body),
    )


def skipped(body: CountBody) -> list[str]:
    """What of the fields of a `body` changes nothing: kinds of tools and blocks that only the
    servers of Anthropic run."""
    tools = [f"tools: {tool.get('type')}" for tool in body.tools or () if not _is_told(tool)]
    lists = (message.get("content") for message in body.messages)
    contents = (block for content in lists if isinstance(content, list) for block in content)
    blocks = [block for block in contents if isinstance(block, dict)]
    said = [f"messages: {block.get('type')}" for block in blocks if _other(block)]
    said += ["messages: citations" for block in blocks if _is_cited(block)]
    held = ["thread"] if isinstance(body, MessagesBody) and body.thread else []
    return list(dict.fromkeys([*held, *tools, *said]))


def _sampling(body: MessagesBody) -> Sampling:
    return Sampling(
        max_tokens=body.max_tokens,
        **body.filters(),
        stop=tuple(text for text in body.stop_sequences or () if text),
    )


def _manner(body: CountBody) -> Manner:
    effort = (body.output_config or {}).get("effort")
    thinks = body.shows_thinking if body.thinking else None
    return manner_of(body.chat_template_kwargs, "output_config.effort", effort, thinks=thinks)


def _form(body: CountBody) -> Form | None:
    where, asked = "output_config.format", (body.output_config or {}).get("format")
    if asked is None:
        # As it was called first.
        where, asked = "output_format", body.output_format
    if asked is None:
        return None
    if not isinstance(asked, dict) or asked.get("type") != "json_schema":
        raise refused(f"{where}.type", "json_schema is expected")
    if not isinstance(asked.get("schema"), dict):
        raise refused(f"{where}.schema", "a JSON schema is needed")
    return Form(asked["schema"])


def _messages(where: str, message: Mapping[str, Any]) -> Iterator[Message]:
    """One message of theirs: results of tools are messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise refused(f"{where}.role", f"user, assistant or system, not {role!r}")
    if content is None or isinstance(content, str):
        yield Message(role, content or "")
        return
    if not isinstance(content, list):
        raise refused(f"{where}.content", "text or a list of blocks")
    parts, gap, thinking = list[str](), "", ""
    calls = list[Call]()
    for index, block in enumerate(content):
        place = f"{where}.content.{index}"
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text" and isinstance(block.get("text"), str):
            parts += [gap, block["text"]]
            gap = ""
        elif kind in _SOURCES:
            parts += ["\n\n" if parts else "", _source(block, place)]
            gap = "\n\n"
        elif kind == "compaction":
            parts += [gap, _text(block.get("content"), f"{place}.content")]
            gap = ""
        elif kind == "thinking":
            thinking += str(block.get("thinking") or "")
        elif kind == "redacted_thinking" or kind in _OTHERS:
            continue
        elif kind == "tool_use":
            arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
            calls.append(Call(str(block.get("id", "")), str(block.get("name", "")), arguments))
        elif kind == "tool_result":
            result = _text(block.get("content"), f"{place}.content")
            if block.get("is_error"):
                result = f"Error: {result}" if result else "Error"
            yield Message("tool", result, call_id=str(block.get("tool_use_id", "")))
        else:
            raise refused(f"{place}.type", f"only text and tools are understood here, not {kind}")
    text = "".join(parts)
    if text or calls or role == "assistant":
        yield Message(role, text, tuple(calls), thinking=thinking)


def _text(content: Any, where: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise refused(where, "text or a list of text blocks")
    said = list[str]()
    for index, block in enumerate(content):
        place = f"{where}.{index}"
        kind = block.get("type") if isinstance(block, dict) else type(block).__name__
        if kind in _SOURCES:
            said.append(_source(block, place))
        elif isinstance(block, dict) and isinstance(block.get("text"), str):
            said.append(block["text"])
        elif kind not in _OTHERS:
            raise refused(place, f"only text is understood here, not {kind}")
    return "\n\n".join(said)


def _source(block: Mapping[str, Any], where: str) -> str:
    """What a document or a result of a search says, below what it is called."""
    source = block.get("source")
    if block.get("type") == "search_result":
        head, said = [block.get("title"), source], _text(block.get("content"), f"{where}.content")
    else:
        head, source = [block.get("title"), block.get("context")], source or {}
        kind = source.get("type") if isinstance(source, dict) else None
        if kind not in ("text", "content"):
            raise refused(f"{where}.source.type", f"only text is understood here, not {kind}")
        name = "data" if kind == "text" else "content"
        if not source.get(name):
            raise refused(f"{where}.source.{name}", "a text is needed")
        said = _text(source[name], f"{where}.source.{name}")
    return "\n\n".join(text for text in (*head, said) if isinstance(text, str) and text)


def _is_cited(block: Mapping[str, Any]) -> bool:
    wanted = block.get("citations")
    return isinstance(wanted, dict) and bool(wanted.get("enabled"))


def _other(block: Mapping[str, Any]) -> bool:
    return block.get("type") in _OTHERS


def _is_told(tool: Mapping[str, Any]) -> bool:
    return (tool.get("type") or "custom") == "custom" or known_tool(tool) is not None


def _tool(where: str, tool: Mapping[str, Any]) -> Tool:
    name = name_of(where, tool)
    if known := known_tool(tool):
        return replace(known, name=name)
    schema = tool.get("input_schema") or {}
    if not isinstance(schema, dict):
        raise refused(f"{where}.input_schema", "a JSON schema is needed")
    strict = bool(tool.get("strict"))
    return Tool(name, str(tool.get("description") or ""), schema, strict)


def _tool_choice(choice: Mapping[str, Any]) -> ToolChoice:
    modes: dict[str, Literal["auto", "none", "required"]] = {
        "auto": "auto",
        "none": "none",
        "any": "required",
        "tool": "required",
    }
    kind = choice.get("type", "auto")
    if not isinstance(kind, str) or kind not in modes:
        raise refused("tool_choice.type", f"auto, any, tool or none, not {kind!r}")
    return ToolChoice(modes[kind], name_of("tool_choice", choice) if kind == "tool" else "")
