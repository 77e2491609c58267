"""Agents with a chat template: asked, and what they would answer if told everything at once."""

from typing import Any

from small_tokenizers import build, chat_format

from kvactors.actors import Agent, AgentSystem, Reply, Sampling
from kvactors.core.testing.models import snap_to_grid, tiny_model

__all__ = ["answered", "as_if_told_at_once", "ask", "chat_model"]

SHORT = Sampling(max_tokens=8)
WAIT = 60


def chat_model() -> tuple[Any, Any]:
    size = build("bytes").get_vocab_size()
    model = snap_to_grid(tiny_model(seed=5, vocab_size=size))
    return model, chat_format("bytes", "chatml").tokenizer


def ask(agent: Agent, *args: Any, **options: Any) -> Reply:
    reply: Reply = agent.ask(*args, sampling=SHORT, **options).get(timeout=WAIT)
    return reply


def answered(messages: list[dict[str, str]], reply: Reply, *more: str) -> list[dict[str, str]]:
    """The conversation with the answer, and further questions."""
    said = [*messages, {"role": "assistant", "content": reply.text}]
    return said + [{"role": "user", "content": text} for text in more]


def as_if_told_at_once(system: AgentSystem, agent: Agent, reply: Reply) -> tuple[int, ...]:
    """What an agent answers that is given the same tokens as its first prompt."""
    tokens = agent.transcript().token_ids
    prompt = tokens[: len(tokens) - len(reply.token_ids)]
    return ask(system.spawn("told at once"), list(prompt)).token_ids
