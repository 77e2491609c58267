"""Rendering one new turn with a chat template that was made for whole conversations.

A template rewrites what it is given: a default system prompt appears, thinking is dropped.
An append-only memory cannot follow, so history is never rendered again. What a turn adds
is found once, on a probe conversation: the text after an assistant's answer (`closing`) and,
for each new turn, what the template adds after that.
"""

import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from kvactors.core.conversation.answer_text import REWRITES, AnswerText
from kvactors.core.conversation.grammar_tokens import GrammarTokens
from kvactors.core.conversation.token_text import ANSWER, QUESTION
from kvactors.core.conversation.tool_format import called_at, result_of, told_by_user
from kvactors.core.errors import TemplateError

__all__ = ["ChatFormat"]

# What a template does with these is looked at when it is loaded.
USUAL_ROLES = ("system", "user", "assistant")

_ASK, _ANSWER = QUESTION["content"], ANSWER["content"]
# Ways to be told that are kept.
_MOST_TOLD = 64


class ChatFormat(AnswerText):
    """A tokenizer and its chat template, as far as an agent needs them, told `template_kwargs`;
    `first` is the one that was told less, and `more` what it was not. Any thread."""

    def __init__(
        self,
        tokenizer: Any,
        template_kwargs: Mapping[str, Any] | None = None,
        first: "ChatFormat | None" = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(tokenizer, {**(template_kwargs or {}), **(more or {})}, first)
        self.usual = first or self
        self._more = json.dumps(more)
        self._grammar_tokens: GrammarTokens | None = None
        self._told = dict[str, ChatFormat]()

    def told(self, template_kwargs: Mapping[str, Any] | None) -> "ChatFormat":
        """As it writes where its template is told `template_kwargs` too, those of them that it
        reads; itself if it reads none. Raises TemplateError."""
        read = {name: value for name, value in (template_kwargs or {}).items() if self.reads(name)}
        if not read:
            return self
        key = json.dumps(read, sort_keys=True)
        made = self._told.get(key)
        if made is None:
            made = ChatFormat(self.tokenizer, self._kwargs, self, read)
            if len(self._told) >= _MOST_TOLD:
                self._told.clear()
            self._told[key] = made
        return made

    @property
    def more(self) -> dict[str, Any] | None:
        """What it was told more than usual, for the caller."""
        found: dict[str, Any] | None = json.loads(self._more)
        return found

    @cached_property
    def begun_by(self) -> str:
        """What it was told `more`, as JSON, by which the template writes something else before a
        first question than it usually does; "" for none. Raises TemplateError."""
        more = self.more or {}
        known = {name: value for name, value in more.items() if self._begins_by({name: value})}
        together = known or (more if self._begins_by(more) else {})
        return json.dumps(together, sort_keys=True) if together else ""

    @property
    def not_begun_by(self) -> dict[str, Any]:
        """What else it was told more. Raises TemplateError."""
        begun_by = json.loads(self.begun_by or "{}")
        return {name: value for name, value in (self.more or {}).items() if name not in begun_by}

    def _begins_by(self, told: Mapping[str, Any]) -> bool:
        """Whether what is `told` changes what stands before a first question; both are rendered
        now, for some templates write the day there."""
        usual = self.usual
        chat = usual.told(told)
        system = {"role": "system", "content": _ANSWER}
        heads = [[QUESTION], *([[system, QUESTION]] if usual.tells_system else [])]
        return chat is not usual and any(
            chat.render(head, answer=True).partition(_ASK)[0]
            != usual.render(head, answer=True).partition(_ASK)[0]
            for head in heads
        )

    def grammar_tokens(self, size: int) -> GrammarTokens:
        """Its tokens as grammars know them, ids below `size`; made once for a model. Raises
        InvalidGrammar."""
        if self.usual is not self:
            return self.usual.grammar_tokens(size)
        made = self._grammar_tokens
        if made is None or made.size != size:
            ends = (*self.end_of_turn, *sorted(self.eos - {*self.end_of_turn}))
            ends_thought = self.encode(self.think_marks[1])
            told = self.written_end() if self.header else ends_thought
            # llguidance keeps what it encodes with, where no garbage collector looks.
            me = weakref.proxy(self)
            made = GrammarTokens(
                self.tokenizer,
                lambda text: me.encode_rest(text),
                self.decode,
                ends,
                size,
                ends_message=told if len(told) == 1 else (),
            )
            self._grammar_tokens = made
        return made

    def opening(self, role: str, text: str, *, system: str | None, answer: bool) -> str:
        """The first turn of a transcript, rendered whole: `text` of `role` behind a `system`
        prompt; `answer`: the assistant is to answer it. A beginning stands as it is, and a question
        of the user follows it; one that the template does not write stands before the question."""
        if system is not None and self.is_beginning(system):
            if role != "user":
                raise TemplateError(f"what begins with tools goes on with a user, not {role!r}")
            return system + text + self.render([QUESTION], answer=answer).partition(_ASK)[2]
        if role == "tool" and self.names_results:
            role, text = told_by_user(text)
        if system is not None and role == "user" and not self.tells_system:
            system, text = None, f"{system}\n\n{text}" if system else text
        messages = [{"role": "system", "content": system}] if system is not None else []

        def render(said: str) -> str:
            return self.render([*messages, {"role": role, "content": said}], answer=answer)

        return self.as_in_history(role, _heard(role, text, render))

    def beginning(self, system_prompt: str | None) -> list[int]:
        """Token ids that a system prompt contributes to any first turn."""
        if system_prompt is None:
            return []
        first = self.opening("user", _ASK, system=system_prompt, answer=True)
        return self.encode_opening(first.partition(_ASK)[0])

    def is_beginning(self, system: str) -> bool:
        """Whether a system prompt is what the template writes before a first question: it begins
        with the same special token, and begins a question, which may have words already."""
        first = self.special_in(self._asked)
        if not first or not system.startswith(first):
            return False
        asks = self.following("user", _ASK, answer=True).partition(_ASK)[0]
        return bool(asks) and asks in system

    def following(
        self,
        role: str,
        text: str,
        *,
        answer: bool,
        behind: Sequence[int] = (),
        said: tuple[str, int] = ("", 0),
    ) -> str:
        """What a later turn, `text` of `role`, adds after the previous answer's closing tokens;
        `answer` as for `opening`. Where the template writes no end, a model may end its own by
        the token that the next turn begins with: at the end of the answer `behind`, it is there.
        `said`: the last answer, whose calls results name, and how many of these stand behind it."""
        if role == "tool" and self.names_results:
            lead = self.before_result(behind, within=said[1] > 0)
            return lead + result_of(self, called_at(*said), text, answer=answer)
        if role == "assistant":
            if self.ends_itself(text):
                end = self.decode(self.written_end(text))
                return self.asks + self.answer_text(text) + end
            # An observed answer follows a question, or the template refuses it.
            asked = self._probe[:1]
            before = self.render(asked, answer=False)
            after = self.render([*asked, {"role": role, "content": text}], answer=False)
            if not after.startswith(before):
                raise TemplateError(REWRITES)
            return self.as_in_history(role, after[len(before) :])

        def render(said: str) -> str:
            return self._behind_answer({"role": role, "content": said}, answer=answer)

        rendered = _heard(role, text, render)
        begun = self.end_for_next(behind)
        next_begun = begun and render(_ASK).startswith(begun)
        return rendered.removeprefix(begun) if next_begun else rendered

    @cached_property
    def takes_results(self) -> bool:
        """Whether the template writes what the role "tool" says, behind a call or an answer."""
        return self.names_results or self.knows("tool")

    def knows(self, role: str) -> bool:
        """Whether the template writes what a later message of this role says."""
        try:
            return _ASK in self.following(role, _ASK, answer=True)
        except TemplateError:
            return False

    def _behind_answer(self, turn: dict[str, str], *, answer: bool) -> str:
        """What a `turn` adds behind a closed answer. What stands before that may be another than
        it was: a date, or thoughts that are dropped."""
        _, _, rest = self.render([*self._probe, turn], answer=answer).partition(_ANSWER)
        if not rest.startswith(self._closing):
            raise TemplateError(REWRITES)
        return rest[len(self._closing) :]


def _heard(role: str, text: str, render: Callable[[str], str]) -> str:
    """The rendering of a turn. Raises TemplateError where what its role says is left out."""
    rendered = render(text)
    if role not in USUAL_ROLES and render(f"{text}a") == rendered:
        raise TemplateError(
            f"the chat template leaves out what the role {role!r} says: use one that it has, such "
            "as user"
        )
    return rendered
