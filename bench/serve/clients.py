"""Clients as they look on the wire: whose headers, in which body. Each request resends everything.

As in recordings of Codex and OpenCode, and in what is public of Claude Code. These set no limit to
an answer, and Codex no temperature: here both are set, so that a run can be repeated.
"""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Client", "Request", "claude_code", "codex", "opencode"]

Body = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """A POST of `body` to a `path`."""

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Client:
    """One conversation: its `headers`, its `system` prompt, its `tools` as name and description;
    `written` puts these into the body that goes to a `path`."""

    path: str
    written: "Callable[[Client, Sequence[str], int], Body]"
    headers: Mapping[str, str]
    system: str
    tools: tuple[tuple[str, str], ...] = ()

    def request(self, said: Sequence[str], decoded: int) -> Request:
        """The turn behind all that was `said`, by the user and the assistant in turn, for an answer
        of `decoded` tokens."""
        return Request(self.path, self.written(self, said, decoded), self.headers)


def opencode(session: str, system: str) -> Client:
    """OpenCode, on chat completions; also what mlx-lm's server speaks."""
    headers = {"x-session-id": session, "x-session-affinity": session}
    return Client("/v1/chat/completions", _chat, headers, system)


def codex(thread: str, system: str, tools: tuple[tuple[str, str], ...] = ()) -> Client:
    """Codex, on responses, with `system` as its instructions, and `tools`: a `thread` of the only
    session."""
    headers = {"thread-id": thread, "x-client-request-id": thread, "session-id": "session"}
    return Client("/v1/responses", _response, headers, system, tools)


def claude_code(agent: str, system: str, tools: tuple[tuple[str, str], ...]) -> Client:
    """Claude Code, on messages, with a `system` prompt and `tools`: the sub-agent of this name, or
    the main agent for ""."""
    headers = {"x-claude-code-session-id": "session", "anthropic-version": "2023-06-01"}
    if agent:
        headers["x-claude-code-agent-id"] = agent
    return Client("/v1/messages", _message, headers, system, tools)


def _chat(client: Client, said: Sequence[str], decoded: int) -> Body:
    return {
        "model": "default_model",
        "messages": [{"role": "system", "content": client.system}, *_messages(said)],
        "max_tokens": decoded,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _response(client: Client, said: Sequence[str], decoded: int) -> Body:
    kinds = ("input_text", "output_text")
    items = [
        {**message, "type": "message", "content": [{"type": kinds[i % 2], "text": said[i]}]}
        for i, message in enumerate(_messages(said))
    ]
    tools = [
        {"type": "function", "name": name, "description": text, "parameters": _schema()}
        for name, text in client.tools
    ]
    return {
        "model": "default_model",
        "instructions": client.system,
        "input": items,
        "tools": tools,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "store": False,
        "stream": True,
        "include": [],
        "prompt_cache_key": "session",
        "temperature": 0,
        "max_output_tokens": decoded,
    }


def _message(client: Client, said: Sequence[str], decoded: int) -> Body:
    # Its first line is another one in each request.
    nonce = f"x-anthropic-billing-header: cc_version=2.1.36; cch={secrets.token_hex(4)};"
    system = {"type": "text", "text": client.system, "cache_control": {"type": "ephemeral"}}
    tools = [
        {"name": name, "description": text, "input_schema": _schema()}
        for name, text in client.tools
    ]
    return {
        "model": "default_model",
        "system": [{"type": "text", "text": nonce}, system],
        "messages": _messages(said),
        "tools": tools,
        "metadata": {"user_id": "user"},
        "max_tokens": decoded,
        "temperature": 0,
        "stream": True,
    }


def _messages(said: Sequence[str]) -> list[dict[str, Any]]:
    roles = ("user", "assistant")
    return [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]


def _schema() -> dict[str, Any]:
    path = {"type": "string", "description": "where"}
    return {"type": "object", "properties": {"path": path}, "required": ["path"]}
