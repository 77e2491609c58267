"""Text as token ids, and back; and whole conversations as text, as a chat template writes them.

Tokenizers are not thread-safe: every call takes the lock, but where one of Rust decodes, which
changes nothing and would wait as long as a whole prompt is encoded.

A tokenizer without a template has this plain one, which separates roles by blank lines:

    (system prompt)

    User:
    (a question)

    Assistant:
    (its answer)
"""

import re
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

from kvactors.core.conversation.token_offsets import whole_text
from kvactors.core.errors import ContextExceeded, TemplateError

__all__ = ["ANSWER", "NEAR", "NO_VARIABLES", "QUESTION", "TemplateText", "TokenText", "vocabulary"]

# What is said in probes.
QUESTION = {"role": "user", "content": "kvactors probe question"}
ANSWER = {"role": "assistant", "content": "kvactors probe answer"}
# Characters before a text on which its tokens may depend.
NEAR = 256

# What `apply_chat_template` takes besides; a template among them would be somebody's program.
_RENDERS = """
    add_generation_prompt chat_template continue_final_message conversation max_length messages
    padding return_assistant_tokens_mask return_dict return_tensors sanitize_control_tokens tokenize
    tokenizer_kwargs truncation"""
NO_VARIABLES = frozenset(_RENDERS.split())


class TokenText:
    """A tokenizer without its chat template; `eos`: the tokens that end a text. `first` has the
    same one. Any thread."""

    _lock: threading.Lock

    def __init__(self, tokenizer: Any, first: "TokenText | None" = None) -> None:
        self.tokenizer = tokenizer
        self.eos = frozenset(_eos_ids(tokenizer))
        self._lock = first._lock if first else threading.Lock()
        self._decoding: AbstractContextManager[object] = self._lock
        if getattr(tokenizer, "backend_tokenizer", None) is not None:
            # What its file says of truncation and padding is put aside now, and not changed again.
            self.encode("")
            self._decoding = nullcontext()

    def check_length(self, characters: int, context: int) -> None:
        """Raise ContextExceeded where so many `characters` are more than a whole `context` of the
        longest tokens: before they are tokenized, which holds up all who read or write."""
        if characters <= context or self.longest_token is None:
            return
        if characters > context * self.longest_token:
            raise ContextExceeded(
                f"{characters} characters exceed the context of {context} tokens: no token has "
                f"more than {self.longest_token} characters",
                -(-characters // self.longest_token),
                context,
            )

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, no special tokens added."""
        with self._lock:
            try:
                return list(self.tokenizer.encode(text, add_special_tokens=False))
            except TypeError:
                return list(self.tokenizer.encode(text))

    def encode_whole(self, text: str) -> list[int]:
        """Token ids of a text that nothing stands before: with what the tokenizer begins texts
        with, unless it is written there."""
        return self.begun(self.encode(text))

    def begun(self, ids: Sequence[int]) -> list[int]:
        """Token ids that nothing stands before, as `encode_whole` begins them."""
        begins = self.begins
        return [*ids] if tuple(ids[: len(begins)]) == begins else [*begins, *ids]

    def encode_rest(self, text: str) -> list[int]:
        """Token ids of a text that goes on in the middle of a line.

        Some tokenizers put a space before whatever they are given. Behind a line break they
        do not, and the break's own tokens are taken off again.
        """
        if not self.adds_space:
            return self.encode(text)
        anchor, whole = self.encode("\n"), self.encode("\n" + text)
        cut = len(anchor)
        return whole[cut:] if cut and whole[:cut] == anchor else self.encode(text)

    def encode_behind(self, before: str, text: str) -> list[int]:
        """Token ids of a text that goes on behind another one, whose end is looked at."""
        near = before[-NEAR:]
        ids, whole = self.encode(near), self.encode(near + text)
        cut = len(ids)
        return whole[cut:] if whole[:cut] == ids else self.encode_rest(text)

    @cached_property
    def adds_space(self) -> bool:
        """Whether the tokenizer puts a space before whatever it is given."""
        return self.decode(self.encode("a") * 2) == "a a"

    @cached_property
    def begins(self) -> tuple[int, ...]:
        """The tokens that the tokenizer begins every text with, if it does."""
        plain = self.encode("a")
        with self._lock:
            whole = list(self.tokenizer.encode("a"))
        places = range(len(whole) - len(plain) + 1)
        first = (place for place in places if whole[place : place + len(plain)] == plain)
        return tuple(whole[: next(first, 0)])

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens included."""
        with self._decoding:
            return str(self.tokenizer.decode(list(tokens)))

    def reply_text(self, tokens: Sequence[int], stop: Sequence[str] = ()) -> str:
        """Text of a reply: end-of-turn tokens and everything from a stop string on are cut."""
        return self.reply_parts(tokens, stop)[0]

    def reply_parts(
        self, tokens: Sequence[int], stop: Sequence[str], begun: int = 0
    ) -> tuple[str, str]:
        """A reply's text, and the text of its tokens that comes after and is not shown. The strings
        of `stop` are looked for behind the first `begun` tokens."""
        end = len(tokens)
        while end and tokens[end - 1] in self.eos:
            end -= 1
        text = self.decode(tokens[:end])
        behind = len(whole_text(self.decode, tokens[:begun])) if stop else 0
        cuts = [place for place in (text.find(string, behind) for string in stop) if place >= 0]
        shown = min(cuts, default=len(text))
        return text[:shown], text[shown:] + self.decode(tokens[end:])

    def end_in(self, text: str) -> tuple[int, ...]:
        """The end token that a text begins with, or none."""
        for token in sorted(self.eos):
            if text.strip().startswith(self.decode([token]).strip()):
                return (token,)
        return ()

    def special_in(self, text: str) -> str:
        """The special token that a text begins with, or ""."""
        first = self.encode(text)[:1]
        return self.decode(first) if first and first[0] in self._special else ""

    def special_at_end(self, text: str) -> tuple[int, ...]:
        """The special token that a text ends with, or none."""
        last = tuple(self.encode(text.rstrip())[-1:])
        return last if last and last[0] in self._special else ()

    @cached_property
    def _special(self) -> frozenset[int]:
        """Its special tokens: those that it has a use for itself, and those of its file."""
        added = getattr(self.tokenizer, "added_tokens_decoder", None) or {}
        named = getattr(self.tokenizer, "all_special_ids", ())
        return frozenset(named) | {int(token) for token, what in added.items() if what.special}

    @cached_property
    def longest_token(self) -> int | None:
        """Characters of the longest token; None where the tokenizer has no vocabulary to tell."""
        with self._lock:
            known = vocabulary(self.tokenizer)
        return max(map(len, known), default=None)


class TemplateText(TokenText):
    """A tokenizer and its chat template, which is given `template_kwargs` too. Any thread.

    `has_template`: whether the tokenizer has a template of its own. `first`: see TokenText.
    """

    def __init__(
        self,
        tokenizer: Any,
        template_kwargs: Mapping[str, Any] | None = None,
        first: TokenText | None = None,
    ) -> None:
        super().__init__(tokenizer, first)
        self._kwargs = dict(template_kwargs or {})
        self.has_template = _has_template(tokenizer)

    def encode_opening(self, rendered: str) -> list[int]:
        """Token ids of a conversation's beginning: a template says itself what stands first."""
        return self.encode(rendered) if self.has_template else self.encode_whole(rendered)

    def reads(self, name: str) -> bool:
        """Whether the template may read a variable of this name: it has it, or its text is not
        known, as that of templates that are programs."""
        known = self.has_template and name not in NO_VARIABLES
        return known and (self._source is None or self.shows(name))

    def shows(self, name: str) -> bool:
        """Whether the text of the template has this variable, or mlx-lm tells its program of it."""
        if self._source is None:
            return self.has_template and name == "enable_thinking"
        if self._variables is None:
            return re.search(rf"\b{re.escape(name)}\b", self._source) is not None
        return name in self._variables

    def names(self, value: str) -> bool:
        """Whether the text of the template has this `value` between quotes."""
        return re.search(rf"""(['"]){re.escape(value)}\1""", self._source or "") is not None

    @cached_property
    def _variables(self) -> frozenset[str] | None:
        """The variables of the template's text; None where Jinja alone cannot read it."""
        # mlx-lm has it; it takes a while to import.
        from jinja2 import Environment, TemplateError, meta

        jinja = Environment(extensions=["jinja2.ext.loopcontrols"])
        try:
            return frozenset(meta.find_undeclared_variables(jinja.parse(self._source or "")))
        except TemplateError:
            return None

    @cached_property
    def _source(self) -> str | None:
        """The template's text; None where it is a program, or one of several."""
        source = getattr(self.tokenizer, "chat_template", None)
        # So mlx-lm has what it renders by a program.
        program = getattr(self.tokenizer, "_chat_template", None)
        return source if isinstance(source, str) and program is None else None

    @cached_property
    def tells_system(self) -> bool:
        """Whether the template writes system prompts: some refuse them, or leave them out."""
        system = {"role": "system", "content": ANSWER["content"]}
        try:
            return ANSWER["content"] in self.render([system, QUESTION], answer=True)
        except TemplateError:
            return False

    @cached_property
    def asks(self) -> str:
        """What the template writes behind a question for the assistant to go on."""
        said = self.render([QUESTION], answer=False)
        asked = self.render([QUESTION], answer=True)
        return asked.removeprefix(said) if asked.startswith(said) else ""

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


def vocabulary(tokenizer: Any) -> Mapping[str, int]:
    """The tokens of a tokenizer, each with its id; none where it cannot tell them."""
    known: Mapping[str, int] = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    return known


def _eos_ids(tokenizer: Any) -> list[int]:
    ids = getattr(tokenizer, "eos_token_ids", None)
    if ids is None:
        ids = getattr(tokenizer, "eos_token_id", None)
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else [int(token) for token in ids]


def _plainly(messages: Sequence[dict[str, str]]) -> str:
    heads = (f"{m['role'].capitalize()}:\n" if m["role"] != "system" else "" for m in messages)
    return "".join(f"{head}{m['content']}\n\n" for head, m in zip(heads, messages, strict=True))


def _has_template(tokenizer: Any) -> bool:
    """mlx-lm's wrapper may have a renderer of its own, and a plain object only the method."""
    for name in ("has_chat_template", "chat_template", "apply_chat_template"):
        if hasattr(tokenizer, name):
            return bool(getattr(tokenizer, name))
    return False
