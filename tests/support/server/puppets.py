"""A server whose model says what a test tells it, and the interfaces that ask it, as one."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import anthropic
import openai
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools
from small_tokenizers import CHATML, build
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.testing import PuppetModel, use_puppet

__all__ = [
    "Asks",
    "Chat",
    "Messages",
    "Said",
    "call",
    "opening",
    "puppet_server",
    "thinking",
    "with_tools",
]

# As many models have it: tools in the system prompt, calls as JSON, results as a role.
WITH_TOOLS = (
    "{% if tools %}<|start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "\n\n{% endif %}Tools:{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}<|end|>\n"
    "{% elif messages[0].role == 'system' %}<|start|>system\n{{ messages[0].content }}<|end|>\n"
    "{% endif %}{% for m in messages if m.role != 'system' %}<|start|>{{ m.role }}\n"
    "{{ m.content }}{% for call in m.tool_calls or () %}\n<tool_call>\n"
    "{{ call.function | tojson }}\n</tool_call>{% endfor %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def thinking(
    template: str = CHATML, added: tuple[str, ...] = (), **options: Any
) -> TokenizerWrapper:
    """A tokenizer that has each text, and marks around thoughts, with a chat `template`."""
    tokenizer = Tokenizer.from_str(build("bytes").to_str())
    tokenizer.add_tokens(["<think>", "</think>", *added])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", clean_up_tokenization_spaces=False
    )
    wrapped.chat_template = template
    return TokenizerWrapper(wrapped, **options)


def opening() -> TokenizerWrapper:
    """The same, with a template that begins each answer with a thought."""
    end = "<|start|>assistant\n{% endif %}"
    assert end in CHATML
    return thinking(CHATML.replace(end, end.replace("{% endif", "<think>\n{% endif")))


def with_tools(added: tuple[str, ...] = ()) -> TokenizerWrapper:
    """With a template that writes tools, calls and results itself."""
    return thinking(
        WITH_TOOLS,
        added,
        tool_parser=json_tools.parse_tool_call,
        tool_call_start=json_tools.tool_call_start,
        tool_call_end=json_tools.tool_call_end,
    )


def call(name: str, **arguments: Any) -> str:
    """What a model writes to call a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@contextmanager
def puppet_server(
    puppet: PuppetModel, store: Path | None = None, **settings: Any
) -> Iterator[Server]:
    """A server of a `puppet`, which keeps what it keeps in `store`; `settings` as for `serve`."""
    system = AgentSystem(puppet, store=store or False)
    use_puppet(system, puppet)
    index = store / "clients.db" if store else None
    with system, serve(system, index=index, port=0, any_model=True, **settings) as server:
        yield server


@dataclass(frozen=True)
class Said:
    """An answer, whichever interface gave it: `calls` are id, name and arguments of each, `message`
    is what the client sends back."""

    text: str
    thought: str
    calls: list[tuple[str, str, dict[str, Any]]]
    reason: str
    prompt: int
    cached: int
    answered: int
    message: dict[str, Any] = field(repr=False)


class Asks(Protocol):
    """An interface, streamed or not. Messages are its own."""

    def __call__(self, server: Server, messages: list[Any], **options: Any) -> Said: ...

    def results(self, results: dict[str, str], *, parts: bool = False) -> list[Any]:
        """What tools gave, by the ids of their calls; as `parts` or as text."""
        ...


@dataclass(frozen=True)
class Chat:
    """Chat completions through the openai package."""

    stream: bool

    def __call__(
        self,
        server: Server,
        messages: list[Any],
        tools: tuple[str, ...] = ("read", "edit"),
        **options: Any,
    ) -> Said:
        listed = [
            {"type": "function", "function": {"name": name, "parameters": _SCHEMA}}
            for name in tools
        ]
        asked: dict[str, Any] = {"model": "any", "messages": messages, "tools": listed, **options}
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            if self.stream:
                usage: Any = {"include_usage": True}
                with client.chat.completions.stream(stream_options=usage, **asked) as stream:
                    stream.until_done()
                    # The final one is refused by the package itself if it was cut.
                    answer: Any = stream.current_completion_snapshot
            else:
                answer = client.chat.completions.create(**asked)
        (choice,) = answer.choices
        message = choice.message
        calls = [
            (c.id, c.function.name, json.loads(c.function.arguments))
            for c in message.tool_calls or ()
        ]
        return Said(
            message.content or "",
            getattr(message, "reasoning_content", None) or "",
            calls,
            choice.finish_reason,
            answer.usage.prompt_tokens,
            answer.usage.prompt_tokens_details.cached_tokens,
            answer.usage.completion_tokens,
            _without_parsed(message.model_dump(exclude_none=True)),
        )

    def results(self, results: dict[str, str], *, parts: bool = False) -> list[Any]:
        return [
            {
                "role": "tool",
                "tool_call_id": call_id,
                "content": [{"type": "text", "text": text}] if parts else text,
            }
            for call_id, text in results.items()
        ]


@dataclass(frozen=True)
class Messages:
    """Messages through the anthropic package."""

    stream: bool

    def __call__(
        self,
        server: Server,
        messages: list[Any],
        tools: tuple[str, ...] = ("read", "edit"),
        **options: Any,
    ) -> Said:
        listed = [{"name": name, "input_schema": _SCHEMA} for name in tools]
        asked: dict[str, Any] = {"model": "any", "messages": messages, "tools": listed}
        asked |= {"max_tokens": 1000} | options
        with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
            if self.stream:
                with client.messages.stream(**asked) as stream:
                    answer: Any = stream.get_final_message()
            else:
                answer = client.messages.create(**asked)
        usage, blocks = answer.usage, answer.content
        return Said(
            "".join(block.text for block in blocks if block.type == "text"),
            "".join(block.thinking for block in blocks if block.type == "thinking"),
            [(block.id, block.name, block.input) for block in blocks if block.type == "tool_use"],
            answer.stop_reason,
            usage.input_tokens + usage.cache_read_input_tokens,
            usage.cache_read_input_tokens,
            usage.output_tokens,
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_none=True) for block in blocks],
            },
        )

    def results(self, results: dict[str, str], *, parts: bool = False) -> list[Any]:
        blocks = [
            {
                "type": "tool_result",
                "tool_use_id": call_id,
                "content": [{"type": "text", "text": text}] if parts else text,
            }
            for call_id, text in results.items()
        ]
        return [{"role": "user", "content": blocks}]


_SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}


def _without_parsed(message: dict[str, Any]) -> dict[str, Any]:
    """Without what the package adds for its own users."""
    message.pop("parsed", None)
    for made in message.get("tool_calls", ()):
        made["function"].pop("parsed_arguments", None)
        made.pop("index", None)
    return message
