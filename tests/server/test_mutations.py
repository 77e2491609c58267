"""What clients change though they mean the same: nothing that was computed is computed again."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from kvactors.actors.frontends.server.web.serve import Server

Mutation = Callable[[dict[str, Any]], dict[str, Any]]
BLOCK = 256

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"What {name} does.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
                "required": ["path"],
            },
        },
    }
    for name in ("read", "edit", "test")
]


def body(system: str, calls: str) -> dict[str, Any]:
    """A conversation with a tool call, a result, and something new at its end."""
    return {
        "model": "default",
        "max_tokens": 8,
        "temperature": 0,
        "tools": TOOLS,
        "messages": [
            {"role": "system", "content": system},
            {
                "role": "user",
                "content": "My cat is called Tom. Remember that. " + "And more. " * 80,
            },
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {
                        "id": calls,
                        "type": "function",
                        "function": {"name": "read", "arguments": '{"path": "a.py", "line": 3}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": calls, "content": "It says Tom."},
            {"role": "assistant", "content": "It says Tom."},
            {"role": "user", "content": "What is my cat called? " + "Say it. " * 40},
        ],
    }


def send(server: Server, asked: dict[str, Any], **headers: str) -> tuple[Any, httpx.Headers]:
    answer = httpx.post(
        f"{server.url}/v1/chat/completions", json=asked, headers=headers, timeout=300
    )
    assert answer.status_code == 200, answer.text
    return answer.json(), answer.headers


def computed(answer: Any) -> int:
    usage = answer["usage"]
    cached: int = usage["prompt_tokens_details"]["cached_tokens"]
    prompt: int = usage["prompt_tokens"]
    return prompt - cached


def goes_on(asked: dict[str, Any], answer: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
    new = {"role": "user", "content": "And now?"}
    further = json.dumps({**asked, "messages": [*asked["messages"], said, new]})
    return dict(json.loads(further))


def nonce(asked: dict[str, Any]) -> dict[str, Any]:
    said = asked["messages"][0]
    said["content"] = said["content"].replace("cch=1111", "cch=2222")
    return asked


def date(asked: dict[str, Any]) -> dict[str, Any]:
    said = asked["messages"][0]
    said["content"] = said["content"].replace("2026-11-22", "2026-11-23")
    return asked


def tool_order(asked: dict[str, Any]) -> dict[str, Any]:
    asked["tools"].reverse()
    return asked


def key_order(asked: dict[str, Any]) -> dict[str, Any]:
    asked["tools"] = [dict(reversed(tool.items())) for tool in asked["tools"]]
    asked["messages"] = [dict(reversed(message.items())) for message in asked["messages"]]
    return asked


def thinking(asked: dict[str, Any]) -> dict[str, Any]:
    asked["messages"][4]["reasoning_content"] = "I thought about it for long."
    return asked


def arguments(asked: dict[str, Any]) -> dict[str, Any]:
    call = asked["messages"][2]["tool_calls"][0]["function"]
    call["arguments"] = '{"line":3,"path":"a.py"}'
    return asked


def part(asked: dict[str, Any]) -> dict[str, Any]:
    for message in asked["messages"]:
        message["content"] = [{"type": "text", "text": message["content"]}]
    return asked


def space(asked: dict[str, Any]) -> dict[str, Any]:
    for message in asked["messages"][1:-1]:
        message["content"] += " \n"
    return asked


def resent(asked: dict[str, Any]) -> dict[str, Any]:
    return asked


def reordered(asked: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(asked.items()))


SAME = [
    nonce, date, tool_order, key_order, thinking, arguments, part, space, resent, reordered,
]  # fmt: skip


@pytest.mark.parametrize("mutation", SAME, ids=lambda mutation: mutation.__name__)
def test_what_means_the_same_is_not_computed_again(server: Server, mutation: Mutation) -> None:
    system = (
        f"x-anthropic-billing-header: cc_version=2; cch=1111\nA helper for {mutation.__name__}.\n"
        "Today's date is 2026-11-22\nBe exact. " + "Be brief. " * 60
    )
    asked = body(system, f"toolu_{mutation.__name__}")
    first, _ = send(server, asked)
    assert computed(first) > 2 * BLOCK

    answer, headers = send(server, mutation(goes_on(asked, first)))

    assert computed(answer) <= BLOCK
    assert "x-kvactors-miss" not in headers


def test_who_begins_with_the_same_tools_in_another_order_begins_alike(server: Server) -> None:
    asked = body("A helper with tools in some order. " + "Be brief. " * 60, "toolu_alike")
    first, _ = send(server, asked)
    asked["messages"] = [asked["messages"][0], {"role": "user", "content": "Hm?"}]

    answer, _ = send(server, tool_order(asked))

    assert computed(answer) <= BLOCK < computed(first) / 2


def test_a_dropped_last_message_costs_what_follows_it(server: Server) -> None:
    asked = body("A helper that loses its last message. " + "Be brief. " * 60, "toolu_dropped")
    send(server, asked)
    dropped = {**asked, "messages": [*asked["messages"][:-1], {"role": "user", "content": "Hm?"}]}

    answer, headers = send(server, dropped)

    assert computed(answer) <= BLOCK
    assert "forked" in headers["x-kvactors-reused"]


def test_an_edited_middle_keeps_all_before_it(server: Server) -> None:
    asked = body("A helper whose past is edited. " + "Be brief. " * 60, "toolu_edited")
    first, _ = send(server, asked)
    edited = json.loads(json.dumps(asked))
    edited["messages"][3]["content"] = "It says Jerry."

    answer, headers = send(server, edited)

    after = sum(len(message["content"]) for message in asked["messages"][3:])
    assert computed(answer) <= BLOCK + after
    assert computed(answer) < computed(first) / 2
    assert "Jerry" in headers["x-kvactors-miss"]
