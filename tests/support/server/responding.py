"""Responses as tests ask for them through the openai package."""

from typing import Any

__all__ = ["ASKED", "GREEDY", "TOLD", "ask", "cached"]

TOLD = "My cat is called Tom. Remember that."
ASKED = "What is my cat called?"
GREEDY: dict[str, Any] = {"model": "default", "temperature": 0, "max_output_tokens": 30}


def ask(client: Any, given: Any, **options: Any) -> Any:
    return client.responses.create(input=given, **(GREEDY | options))


def cached(response: Any) -> int:
    return int(response.usage.input_tokens_details.cached_tokens)
