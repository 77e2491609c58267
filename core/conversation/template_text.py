"""Whole conversations as a chat template writes them.

A tokenizer without a template has this plain one, which separates roles by blank lines:

    (system prompt)

    User:
    (a question)

    Assistant:
    (its answer)
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from kvactors.core.conversation.token_text import TokenText
from kvactors.core.errors import TemplateError

__all__ = ["ANSWER", "QUESTION", "TemplateText"]

# What is said in probes.
QUESTION = {"role": "user", "content": "kvactors probe question"}
ANSWER = {"role": "assistant", "content": "kvactors probe answer"}


class TemplateText(TokenText):
    """A tokenizer and its chat template, which is given `template_kwargs` too. Any thread.

    `has_template`: whether the tokenizer has a template of its own.
    """

    def __init__(self, tokenizer: Any, template_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(tokenizer)
        self._kwargs = dict(template_kwargs or {})
        self.has_template = _has_template(tokenizer)

    def encode_opening(self, rendered: str) -> list[int]:
        """Token ids of a conversation's beginning: a template says itself what stands first."""
        return self.encode(rendered) if self.has_template else self.encode_whole(rendered)

    @cached_property
    def tells_system(self) -> bool:
        """Whether the template writes system prompts: some refuse them, or leave them out."""
        system = {"role": "system", "content": ANSWER["content"]}
        try:
            return ANSWER["content"] in self.render([system, QUESTION], answer=True)
        except TemplateError:
            return False

    def render(self, messages: Sequence[Any], *, answer: bool, **more: Any) -> str:
        """The text of `messages`; `answer`: the assistant is to go on. `more` is what else the
        template is told. Raises TemplateError."""
        if not self.has_template:
            return _plainly(messages) + ("Assistant:\n" if answer else "")
        with self._lock:
            try:
                return str(
                    self.tokenizer.apply_chat_template(
                        list(messages),
                        tokenize=False,
                        add_generation_prompt=answer,
                        **{**self._kwargs, **more},
                    )
                )
            except Exception as error:
                roles = ", ".join(message["role"] for message in messages)
                raise TemplateError(
                    f"the chat template cannot render the roles [{roles}]: {error}"
                ) from error


def _plainly(messages: Sequence[dict[str, str]]) -> str:
    heads = (f"{m['role'].capitalize()}:\n" if m["role"] != "system" else "" for m in messages)
    return "".join(f"{head}{m['content']}\n\n" for head, m in zip(heads, messages, strict=True))


def _has_template(tokenizer: Any) -> bool:
    """mlx-lm's wrapper may have a renderer of its own, and a plain object only the method."""
    for name in ("has_chat_template", "chat_template", "apply_chat_template"):
        if hasattr(tokenizer, name):
            return bool(getattr(tokenizer, name))
    return False
