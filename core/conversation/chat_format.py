"""Rendering one new turn with a chat template that was made for whole conversations.

A template rewrites what it is given: a default system prompt appears, thinking is dropped.
An append-only memory cannot follow, so history is never rendered again. What a turn adds
is found once, on a probe conversation: the text after an assistant's answer (`closing`) and,
for each new turn, what the template adds after that.

A tokenizer without a template has this plain one, which separates roles by blank lines:

    (system prompt)

    User:
    (a question)

    Assistant:
    (its answer)
"""

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from kvactors.core.conversation.grammar_tokens import GrammarTokens
from kvactors.core.conversation.token_text import TokenText
from kvactors.core.errors import TemplateError

__all__ = ["ChatFormat"]

# What a template does with these is looked at when it is loaded.
USUAL_ROLES = ("system", "user", "assistant")

_ASK = "kvactors probe question"
_ANSWER = "kvactors probe answer"
_SYSTEM = "kvactors probe system"
_REWRITES = (
    "the chat template rewrites the conversation when a turn is added; kvactors needs one that "
    "appends"
)


class ChatFormat(TokenText):
    """A tokenizer and its chat template, as far as an agent needs them. Any thread.

    `has_template`: whether the tokenizer has a template of its own. Raises TemplateError at
    construction when that cannot render an alternating conversation at all.
    """

    def __init__(self, tokenizer: Any, template_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(tokenizer)
        self._kwargs = dict(template_kwargs or {})
        self.has_template = _has_template(tokenizer)
        self._grammar_tokens: GrammarTokens | None = None
        self._probe = [
            {"role": "user", "content": _ASK},
            {"role": "assistant", "content": _ANSWER},
        ]
        head, answered, self._ending = self._render(self._probe, answer=False).rpartition(_ANSWER)
        if not answered:
            raise TemplateError("the chat template does not render an assistant's answer")
        asked_again = self._render([*self._probe, self._probe[0]], answer=True)
        self._followed = asked_again.partition(_ANSWER)[2]
        self._closing = self._closing_in_history()
        self._asked = self._render(self._probe[:1], answer=True)
        lead = head.removeprefix(self._asked)
        self._lead = "" if lead.strip() else lead

    def encode_opening(self, rendered: str) -> list[int]:
        """Token ids of a conversation's beginning: a template says itself what stands first."""
        return self.encode(rendered) if self.has_template else self.encode_whole(rendered)

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of an answer, as the model says it: behind the prompt that asks for it, and
        with the white space that the template writes there."""
        lead = "" if self.shown_lead else self._lead
        return self.encode_behind(self._asked, lead + self.answer_text(text))

    def answer_text(self, text: str) -> str:
        """What the tokens of an answer show: that white space too, which models say themselves."""
        return text if text.startswith(self.shown_lead) else self.shown_lead + text

    @cached_property
    def shown_lead(self) -> str:
        """That white space, unless decoding drops it."""
        shown = self.decode(self.encode_behind(self._asked, f"{self._lead}a"))
        return self._lead if shown.startswith(self._lead) else ""

    @property
    def written_end(self) -> tuple[int, ...]:
        """The end token that the template itself writes after an answer, or none."""
        return self._end_in(self._ending)

    @property
    def end_of_turn(self) -> tuple[int, ...]:
        """The end token that a model says after an answer: the one that the template writes there,
        or begins the next turn with, or any, or none."""
        return self.written_end or self._end_in(self._followed) or tuple(sorted(self.eos)[:1])

    def _end_in(self, text: str) -> tuple[int, ...]:
        """The end token that a text begins with, or none."""
        for token in sorted(self.eos):
            if text.strip().startswith(self.decode([token]).strip()):
                return (token,)
        return ()

    def grammar_tokens(self, size: int) -> GrammarTokens:
        """Its tokens as grammars know them, ids below `size`; made once for a model. Raises
        InvalidGrammar."""
        made = self._grammar_tokens
        if made is None or made.size != size:
            ends = (*self.end_of_turn, *sorted(self.eos - {*self.end_of_turn}))
            # llguidance keeps what it encodes with, where no garbage collector looks.
            me = weakref.proxy(self)
            made = GrammarTokens(
                self.tokenizer, lambda text: me.encode_rest(text), self.decode, ends, size
            )
            self._grammar_tokens = made
        return made

    def opening(self, role: str, text: str, *, system: str | None, answer: bool) -> str:
        """The first turn of a transcript, rendered whole: `text` of `role` behind a `system`
        prompt; `answer`: the assistant is to answer it."""
        messages = [{"role": "system", "content": system}] if system is not None else []

        def render(said: str) -> str:
            return self._render([*messages, {"role": role, "content": said}], answer=answer)

        return _heard(role, text, render)

    def following(self, role: str, text: str, *, answer: bool, behind: Sequence[int] = ()) -> str:
        """What a later turn, `text` of `role`, adds after the previous answer's closing tokens;
        `answer` as for `opening`. Where the template writes no end, a model may end its own by
        the token that the next turn begins with: at the end of the answer `behind`, it is there."""
        if role == "assistant":
            # An observed answer follows a question, or the template refuses it.
            asked = self._probe[:1]
            before = self._render(asked, answer=False)
            after = self._render([*asked, {"role": role, "content": text}], answer=False)
            if not after.startswith(before):
                raise TemplateError(_REWRITES)
            return after[len(before) :]

        def render(said: str) -> str:
            return self._behind_answer({"role": role, "content": said}, answer=answer)

        rendered = _heard(role, text, render)
        begun = self._end_for_next(behind)
        written = begun and render(_ASK).startswith(begun)
        return rendered.removeprefix(begun) if written else rendered

    def _end_for_next(self, tokens: Sequence[int]) -> str:
        """The end token that an answer's `tokens` end with, where white space at most stands
        behind answers and the next turn may begin with it."""
        ended = tokens and tokens[-1] in self.eos and not self._closing.strip()
        end = self.decode(tokens[-1:]) if ended else ""
        return end if end.strip() or not self._closing else ""

    def with_tools(self, system: str, tools: Sequence[dict[str, Any]]) -> str | None:
        """The system prompt that the template itself makes of a `system` prompt and of `tools`,
        in the form that chat templates take; None if it writes nothing of them."""
        question = self._probe[0]
        probe = [{"role": "system", "content": _SYSTEM}, question]
        asked = [{"role": "system", "content": system}, question]
        try:
            head, _, tail = self._render(probe, answer=True).partition(_SYSTEM)
            whole = self._render(asked, answer=True, tools=list(tools))
        except TemplateError:
            return None
        if not (tail and whole.startswith(head) and whole.endswith(tail)):
            return None
        written = whole[len(head) : len(whole) - len(tail)]
        return None if written == system else written

    def with_calls(self, text: str, calls: Sequence[dict[str, Any]]) -> str | None:
        """What the template makes of an answer with `text` and tool `calls`, in the form that chat
        templates take; None if it writes nothing of them."""
        asked = self._probe[:1]
        answer = {"role": "assistant", "content": text, "tool_calls": list(calls)}
        try:
            before = self._render(asked, answer=True)
            whole = self._render([*asked, answer], answer=False)
        except TemplateError:
            return None
        written = whole[len(before) :].removeprefix(self._lead).removesuffix(self._ending)
        return written if whole.startswith(before) and written != text else None

    def writes_like(self, other: "ChatFormat") -> bool:
        """Whether both templates write the same behind an answer that a question follows."""
        return self._followed == other._followed

    def knows(self, role: str) -> bool:
        """Whether the template writes what a later message of this role says."""
        try:
            return _ASK in self.following(role, _ASK, answer=True)
        except TemplateError:
            return False

    def closing_after(self, tokens: Sequence[int], *, answered: bool) -> str:
        """Closing text that a finished answer still lacks, given its last token.

        An answer that ended by itself sampled the end-of-turn token; one that was cut
        lacks all of the closing.
        """
        if not answered or not self._closing:
            return ""
        begun = self._end_for_next(tokens)
        if begun and self._followed.removeprefix(self._closing).startswith(begun):
            # The next turn has begun: the white space is the model's, or is not there.
            return ""
        if tokens and tokens[-1] in self.eos:
            end = self.decode(tokens[-1:])
            if end.strip() == self._ending.strip():
                # It stands for whatever ends an answer that another turn follows.
                end = self._closing.strip()
            if self._closing.startswith(end):
                return self._closing[len(end) :]
            if self._closing.strip().startswith(end.strip()):
                return self._closing[self._closing.index(end.strip()) + len(end.strip()) :]
        return self._closing

    def _closing_in_history(self) -> str:
        """What stands behind an answer that another turn follows. Some templates drop a closing
        newline then, and some end it by another token: what stands in the ledger wins, and what the
        turn adds starts where the two part. Raises TemplateError."""
        for closing in (self._ending, self._ending.rstrip()):
            if self._followed.startswith(closing):
                return closing
        first = self.encode(self._followed)[:1]
        if first and first[0] in getattr(self.tokenizer, "all_special_ids", ()):
            return self.decode(first)
        raise TemplateError(_REWRITES)

    def _behind_answer(self, turn: dict[str, str], *, answer: bool) -> str:
        """What a `turn` adds behind a closed answer. What stands before that may be another than
        it was: a date, or thoughts that are dropped."""
        _, _, rest = self._render([*self._probe, turn], answer=answer).partition(_ANSWER)
        if not rest.startswith(self._closing):
            raise TemplateError(_REWRITES)
        return rest[len(self._closing) :]

    def _render(self, messages: list[Any], *, answer: bool, **more: Any) -> str:
        if not self.has_template:
            return _plainly(messages) + ("Assistant:\n" if answer else "")
        with self._lock:
            try:
                return str(
                    self.tokenizer.apply_chat_template(
                        messages,
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


def _heard(role: str, text: str, render: Callable[[str], str]) -> str:
    """The rendering of a turn. Raises TemplateError where what its role says is left out."""
    rendered = render(text)
    if role not in USUAL_ROLES and render(f"{text}a") == rendered:
        raise TemplateError(
            f"the chat template leaves out what the role {role!r} says: use one that it has, such "
            "as user"
        )
    return rendered


def _plainly(messages: Sequence[dict[str, str]]) -> str:
    heads = (f"{m['role'].capitalize()}:\n" if m["role"] != "system" else "" for m in messages)
    return "".join(f"{head}{m['content']}\n\n" for head, m in zip(heads, messages, strict=True))


def _has_template(tokenizer: Any) -> bool:
    """mlx-lm's wrapper may have a renderer of its own, and a plain object only the method."""
    for name in ("has_chat_template", "chat_template", "apply_chat_template"):
        if hasattr(tokenizer, name):
            return bool(getattr(tokenizer, name))
    return False
