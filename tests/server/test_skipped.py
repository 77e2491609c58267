"""What only a provider's own servers do, or what a client calls by names of its own: skipped and
named, never a reason to refuse a session; and a full context in the words that clients look for."""

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvactors.actors.frontends.server.web.command_run import CLAUDE_CODE, greet
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.system.system import AgentSystem

WAIT = 60
HELLO = [{"role": "user", "content": "hello"}]
RUN = {"name": "run", "description": "", "parameters": {"type": "object", "properties": {}}}
CHAT: dict[str, Any] = {"messages": HELLO, "max_tokens": 4}
RESPONSE: dict[str, Any] = {"input": "hello", "max_output_tokens": 4}
MESSAGE: dict[str, Any] = {"messages": HELLO, "max_tokens": 4}
NAMELESS = {"type": "function", "function": {"name": ""}}
ANY = {"name": "run", "input_schema": {}}
CUSTOM = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [{"type": "custom", "custom": {"name": "run"}}]},
}
HOSTED = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "s"}]}
SEARCH = {"type": "web_search_20250305", "name": "web_search"}


def blocks(*content: dict[str, Any]) -> list[dict[str, Any]]:
    return [*HELLO, {"role": "assistant", "content": list(content)}, *HELLO]


def items(*between: dict[str, Any]) -> list[dict[str, Any]]:
    return [*HELLO, *between, {"role": "assistant", "content": "Yes."}, *HELLO]


@pytest.mark.parametrize(
    ("path", "body", "skipped"),
    [
        (
            "chat/completions",
            CHAT | {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
            "stream_options.continuous_usage_stats",
        ),
        ("chat/completions", {"messages": [{**HELLO[0], "name": "Ann"}]}, "messages.name"),
        ("chat/completions", CHAT | {"reasoning": {"exclude": True}}, "reasoning.exclude"),
        (
            "completions",
            {"prompt": "hello", "max_tokens": 4, "stream_options": {"extra": 1}},
            "stream_options.extra",
        ),
        (
            "responses",
            RESPONSE | {"stream_options": {"include_obfuscation": True}},
            "stream_options",
        ),
        (
            "chat/completions",
            CHAT | {"tools": [{"type": "custom", "custom": RUN}], "tool_choice": "required"},
            "tools: custom",
        ),
        (
            "chat/completions",
            CHAT
            | {
                "tools": [{"type": "custom", "custom": RUN}, {"function": RUN}],
                "tool_choice": {"type": "custom", "custom": {"name": "run"}},
            },
            "tools: custom, tool_choice: custom",
        ),
        (
            "chat/completions",
            CHAT | {"tools": [{"type": "custom", "custom": RUN}], "tool_choice": CUSTOM},
            "tools: custom",
        ),
        ("chat/completions", CHAT | {"tools": [{"type": ["x"]}]}, "tools: ['x']"),
        ("chat/completions", CHAT | {"tools": [{"type": {"a": 1}}]}, "tools: {'a': 1}"),
        (
            "responses",
            RESPONSE | {"tools": [{"type": "web_search"}], "tool_choice": "required"},
            "tools: web_search",
        ),
        (
            "responses",
            RESPONSE | {"input": items({"type": "web_search_call", "id": "ws_1"})},
            "input: web_search_call",
        ),
        (
            "responses",
            RESPONSE | {"input": items({"type": "local_shell_call", "call_id": "1"})},
            "input: local_shell_call",
        ),
        (
            "responses",
            RESPONSE | {"input": items({"type": "compaction", "encrypted_content": "x"})},
            "input: compaction",
        ),
        (
            "responses",
            RESPONSE | {"tools": [{"type": "mcp", "server_label": "s"}], "tool_choice": HOSTED},
            "tools: mcp",
        ),
        (
            "responses",
            RESPONSE
            | {
                "reasoning": {"effort": "high"},
                "text": {"verbosity": "low"},
                "include": ["reasoning.encrypted_content"],
            },
            "text.verbosity, include: reasoning.encrypted_content, reasoning.effort",
        ),
        (
            "messages",
            MESSAGE | {"tools": [SEARCH], "tool_choice": {"type": "any"}},
            "tools: web_search_20250305",
        ),
        (
            "messages",
            MESSAGE
            | {
                "tools": [SEARCH, {"type": None, "name": "run", "input_schema": {}}],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            "tools: web_search_20250305",
        ),
        (
            "messages",
            MESSAGE
            | {
                "messages": blocks(
                    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
                    {"type": "text", "text": "Yes."},
                )
            },
            "messages: server_tool_use, messages: web_search_tool_result",
        ),
        (
            "messages",
            MESSAGE
            | {
                "messages": blocks({"type": "fallback"}, {"type": "compaction", "content": "Yes."}),
                "output_config": {"effort": "low"},
                "thinking": {"type": "enabled", "budget_tokens": 1024},
            },
            "messages: fallback, output_config.effort, thinking",
        ),
    ],
)
def test_what_a_provider_does_itself_is_skipped_and_named(
    server: Server, path: str, body: dict[str, Any], skipped: str
) -> None:
    answer = httpx.post(f"{server.url}/v1/{path}", json=body, timeout=WAIT)

    assert answer.status_code == 200, answer.text
    assert answer.headers["x-kvactors-ignored"] == skipped


@pytest.mark.parametrize(("choice", "reason"), [("any", "tool_use"), ("none", "end_turn")])
def test_a_choice_of_tools_holds_beside_one_without_a_name(
    server: Server, choice: str, reason: str
) -> None:
    tools = [ANY, {"type": "mcp_toolset", "mcp_server_name": "s"}]
    body = MESSAGE | {"tools": tools, "tool_choice": {"type": choice}, "max_tokens": 200}
    # By chance an answer may be longer.
    body |= {"temperature": 0}

    answer = httpx.post(f"{server.url}/v1/messages", json=body, timeout=WAIT)

    assert answer.json()["stop_reason"] == reason


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", CHAT | {"tools": [{"type": "function"}]}),
        ("chat/completions", CHAT | {"tool_choice": "required"}),
        ("chat/completions", CHAT | {"tools": [{"function": RUN}], "tool_choice": NAMELESS}),
        ("responses", RESPONSE | {"input": items({"type": "mystery"})}),
        ("responses", RESPONSE | {"prompt": {"id": "pmpt_1"}}),
        ("messages", MESSAGE | {"messages": blocks({"type": "image", "source": {}})}),
        ("messages", MESSAGE | {"messages": blocks({"type": "compaction", "content": [1]})}),
        ("messages", MESSAGE | {"tool_choice": {"type": "any"}}),
        ("messages", MESSAGE | {"tools": [{"description": "d", "input_schema": {}}]}),
        ("messages", MESSAGE | {"tools": [ANY], "tool_choice": {"type": "tool"}}),
    ],
)
def test_what_nobody_understands_is_refused_as_before(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    assert httpx.post(f"{server.url}/v1/{path}", json=body, timeout=WAIT).status_code == 400


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", CHAT),
        ("completions", {"prompt": "hello", "max_tokens": 4}),
        ("responses", RESPONSE),
        ("messages", MESSAGE),
    ],
)
def test_sampling_that_the_engine_has_is_not_ignored(
    server: Server, path: str, body: dict[str, Any]
) -> None:
    own = {"top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1}
    wrong = {"top_k": -2, "min_p": 1.5, "repetition_penalty": 0}

    answer = httpx.post(f"{server.url}/v1/{path}", json=body | own, timeout=WAIT)

    assert answer.status_code == 200, answer.text
    assert "x-kvactors-ignored" not in answer.headers
    none = httpx.post(f"{server.url}/v1/{path}", json=body | {"top_k": -1}, timeout=WAIT)
    assert none.status_code == 200, none.text
    for field, value in wrong.items():
        refused = httpx.post(f"{server.url}/v1/{path}", json=body | {field: value}, timeout=WAIT)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(f"{field}: ")


def test_a_full_context_is_told_so_that_each_client_compacts(server: Server) -> None:
    long = [{"role": "user", "content": "word " * 400_000}]

    message = httpx.post(
        f"{server.url}/v1/messages", json=MESSAGE | {"messages": long}, timeout=WAIT
    )
    chat = httpx.post(
        f"{server.url}/v1/chat/completions", json=CHAT | {"messages": long}, timeout=WAIT
    )

    assert (message.status_code, chat.status_code) == (400, 400)
    assert message.json()["error"]["message"].startswith("prompt is too long: ")
    assert chat.json()["error"]["code"] == "context_length_exceeded"


def test_what_is_printed_for_clients_works_as_it_stands(
    system: AgentSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve(system, port=0, index=tmp_path / "index", keys=lambda: {"k" * 20}) as locked:
        greet(locked)
        said = capsys.readouterr().out

        # "default" is a model of Anthropic's to Claude Code, and it asks for small ones by name.
        for name in CLAUDE_CODE:
            (model,) = re.findall(rf"{name}=(\S+)", said)
            answer = httpx.post(
                f"{locked.url}/v1/messages",
                json=MESSAGE | {"model": model},
                headers={"x-api-key": "k" * 20},
                timeout=WAIT,
            )
            assert answer.status_code == 200
    assert f"CLAUDE_CODE_MAX_CONTEXT_TOKENS={system.spec.context} " in said
    assert "KVACTORS_API_KEY=$KEY codex" in said
    assert 'env_key="KVACTORS_API_KEY"' in said
