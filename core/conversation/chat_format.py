"""Rendering one new turn with a chat template that was made for whole conversations.

A template rewrites what it is given: a default system prompt appears, thinking is dropped.
An append-only memory cannot follow, so history is never rendered again. What a turn adds
is found once, on a probe conversation: the text after an assistant's answer (`closing`) and,
for each new turn, what the template adds after that.
"""

import weakref
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from kvactors.core.conversation.grammar_tokens import GrammarTokens
from kvactors.core.conversation.template_text import ANSWER, QUESTION, TemplateText
from kvactors.core.conversation.tool_format import (
    CHANNEL,
    called,
    called_at,
    end_of_calls,
    headers,
    names_results,
    result_of,
)
from kvactors.core.errors import TemplateError

__all__ = ["ChatFormat"]

# What a template does with these is looked at when it is loaded.
USUAL_ROLES = ("system", "user", "assistant")

_ASK, _ANSWER = QUESTION["content"], ANSWER["content"]
_REWRITES = (
    "the chat template rewrites the conversation when a turn is added; kvactors needs one that "
    "appends"
)


class ChatFormat(TemplateText):
    """A tokenizer and its chat template, as far as an agent needs them. Any thread.

    `header`: what the template writes before an answer beside the prompt that asks for it, where
    answers are messages with a header each, as gpt-oss has them; "" elsewhere. `names_results`: the
    result of a call says which one it is of, behind that call alone. Raises TemplateError at
    construction when the template cannot render an alternating conversation at all.
    """

    def __init__(self, tokenizer: Any, template_kwargs: dict[str, Any] | None = None) -> None:
        super().__init__(tokenizer, template_kwargs)
        self._grammar_tokens: GrammarTokens | None = None
        self._probe = [QUESTION, ANSWER]
        _, answered, self._ending = self.render(self._probe, answer=False).rpartition(_ANSWER)
        if not answered:
            raise TemplateError("the chat template does not render an assistant's answer")
        asked_again = self.render([*self._probe, self._probe[0]], answer=True)
        head, _, self._followed = asked_again.partition(_ANSWER)
        self._closing = self._closing_in_history()
        self._asked = self.render(self._probe[:1], answer=True)
        self._lead = head.removeprefix(self._asked) if head.startswith(self._asked) else ""
        if self._lead.strip() and not self.special_in(self._lead):
            self._lead = ""
        self.header = self._lead if self._lead.startswith(CHANNEL) else ""
        self.names_results = names_results(self)
        if self.header:
            # Not every file of such a tokenizer says that a call ends an answer.
            self.eos |= {*end_of_calls(self)}

    def encode_answer(self, text: str) -> list[int]:
        """Token ids of an answer, as the model says it: behind the prompt that asks for it, and
        with what the template writes there."""
        lead = "" if self.shown_lead else self._lead
        return self.encode_behind(self._asked, lead + self.answer_text(text))

    def answer_text(self, text: str) -> str:
        """What the tokens of an answer show: what the template writes there too, which models say
        themselves. A text may begin with a header of its own."""
        begins = self.special_in(self._lead) or self.shown_lead
        return text if text.startswith(begins) else self.shown_lead + text

    @cached_property
    def shown_lead(self) -> str:
        """White space or a header that the template writes before an answer, unless decoding drops
        it."""
        shown = self.decode(self.encode_behind(self._asked, f"{self._lead}a"))
        return self._lead if shown.startswith(self._lead) else ""

    @property
    def written_end(self) -> tuple[int, ...]:
        """The end token that the template itself writes after an answer that others follow, or
        none."""
        return self._kept_end or self.end_in(self._ending)

    @property
    def end_of_turn(self) -> tuple[int, ...]:
        """The end token that a model says after an answer: the one that the template writes there,
        or begins the next turn with, or any, or none."""
        written = self.end_in(self._ending) or self.end_in(self._followed)
        return written or tuple(sorted(self.eos)[:1])

    def kept(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The `tokens` of an answer as its ledger has them: where the template ends the last answer
        of all by another token than those before it, by that one."""
        last = tuple(tokens[-1:])
        swapped = self._kept_end and last and last == self.end_in(self._ending)
        return (*tokens[:-1], *self._kept_end) if swapped else tuple(tokens)

    def said(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The tokens of an answer that ended by itself as the model said them: the end token that
        `kept` put away."""
        put = self._kept_end and tuple(tokens[-1:]) == self._kept_end
        return (*tokens[:-1], *self.end_in(self._ending)) if put else tuple(tokens)

    @cached_property
    def _kept_end(self) -> tuple[int, ...]:
        """The token that ends an answer in history, if the last answer of all has another."""
        return () if self._ending.startswith(self._closing) else tuple(self.encode(self._closing))

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
        prompt; `answer`: the assistant is to answer it. A beginning stands as it is, and a question
        of the user follows it; one that the template does not write stands before the question."""
        if system is not None and self.is_beginning(system):
            if role != "user":
                raise TemplateError(f"what begins with tools goes on with a user, not {role!r}")
            return system + text + self.render([QUESTION], answer=answer).partition(_ASK)[2]
        if system is not None and role == "user" and not self.tells_system:
            system, text = None, f"{system}\n\n{text}" if system else text
        messages = [{"role": "system", "content": system}] if system is not None else []

        def render(said: str) -> str:
            return self.render([*messages, {"role": role, "content": said}], answer=answer)

        return _heard(role, text, render)

    def is_beginning(self, system: str) -> bool:
        """Whether a system prompt is what the template writes before a first question: it begins
        with the same special token, and ends as each question is begun."""
        first = self.special_in(self._asked)
        if not first or not system.startswith(first):
            return False
        return system.endswith(self.following("user", _ASK, answer=True).partition(_ASK)[0])

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
            result = result_of(self, called_at(*said), text, answer=answer)
            begun = self.header or tuple(behind[-1:]) == self.end_of_calls
            return result if begun else self.decode(self.end_of_calls) + result
        if role == "assistant":
            # An observed answer follows a question, or the template refuses it.
            asked = self._probe[:1]
            before = self.render(asked, answer=False)
            after = self.render([*asked, {"role": role, "content": text}], answer=False)
            if not after.startswith(before):
                raise TemplateError(_REWRITES)
            written = after[len(before) :]
            if self._kept_end and written.endswith(self._ending):
                return written.removesuffix(self._ending) + self._closing
            return written

        def render(said: str) -> str:
            return self._behind_answer({"role": role, "content": said}, answer=answer)

        rendered = _heard(role, text, render)
        begun = self._end_for_next(behind)
        next_begun = begun and render(_ASK).startswith(begun)
        return rendered.removeprefix(begun) if next_begun else rendered

    def _end_for_next(self, tokens: Sequence[int]) -> str:
        """The end token that an answer's `tokens` end with, where white space at most stands
        behind answers and the next turn may begin with it."""
        ended = tokens and tokens[-1] in self.eos and not self._closing.strip()
        end = self.decode(tokens[-1:]) if ended else ""
        return end if end.strip() or not self._closing else ""

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
        last = tuple(tokens[-1:])
        if last and last in (self._kept_end, self.end_of_calls):
            return ""
        if self.header and any(map(called, headers(self.decode(tokens))[-1:])):
            return self.decode(self.end_of_calls)
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

    @cached_property
    def end_of_calls(self) -> tuple[int, ...]:
        """The token that a call ends an answer with, where that is another one than ends words: the
        result stands right behind it. None elsewhere."""
        end = end_of_calls(self)
        ordinary = (self.special_at_end(self._ending), self.end_of_turn)
        return () if end in ordinary or self.eos.isdisjoint(end) else end

    def _closing_in_history(self) -> str:
        """What stands behind an answer that another turn follows. Some templates drop a closing
        newline then, and some end it by another token: what stands in the ledger wins, and what the
        turn adds starts where the two part. Raises TemplateError."""
        for closing in (self._ending, self._ending.rstrip()):
            if self._followed.startswith(closing):
                return closing
        if first := self.special_in(self._followed):
            return first
        raise TemplateError(_REWRITES)

    def _behind_answer(self, turn: dict[str, str], *, answer: bool) -> str:
        """What a `turn` adds behind a closed answer. What stands before that may be another than
        it was: a date, or thoughts that are dropped."""
        _, _, rest = self.render([*self._probe, turn], answer=answer).partition(_ANSWER)
        if not rest.startswith(self._closing):
            raise TemplateError(_REWRITES)
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
