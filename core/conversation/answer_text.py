"""What stands before an answer and behind it, as a chat template writes it. Any thread."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from kvactors.core.conversation.token_text import ANSWER, NEAR, QUESTION, TemplateText, TokenText
from kvactors.core.conversation.tool_format import (
    CHANNEL,
    called,
    ends_of_calls,
    headers,
    names_results,
    said_to_user,
)
from kvactors.core.errors import TemplateError

__all__ = ["REWRITES", "AnswerText"]

REWRITES = (
    "the chat template rewrites the conversation when a turn is added; kvactors needs one that "
    "appends"
)
_ANSWER = ANSWER["content"]


class AnswerText(TemplateText):
    """A tokenizer and its chat template, as far as answers are concerned. Any thread.

    `header`: what the template writes before an answer beside the prompt that asks for it, where
    answers are messages with a header each, as gpt-oss has them; "" elsewhere. `names_results`: the
    result of a call says which one it is of, behind that call alone. `end_of_calls`: the token that
    a call ends an answer with, where that is another one than ends words. `template_kwargs` and
    `first`: see TemplateText. Raises TemplateError at construction when the template cannot render
    an alternating conversation at all.
    """

    def __init__(
        self,
        tokenizer: Any,
        template_kwargs: Mapping[str, Any] | None = None,
        first: TokenText | None = None,
    ) -> None:
        super().__init__(tokenizer, template_kwargs, first)
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
        self._call_mark, end = ends_of_calls(self) if self.names_results else ("", ())
        if self.header:
            # Not every file of such a tokenizer says that a call ends an answer.
            self.eos |= {*end}
        ordinary = not end or end == self.end_of_turn or self.eos.isdisjoint(end)
        self.end_of_calls = () if ordinary else end

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

    def words(self, text: str) -> str:
        """What an answer's `text` says, without thoughts and the headers of messages."""
        if self.header:
            return said_to_user(text)
        start, end = self.think_marks
        _, thought, said = text.rpartition(end) if end else ("", "", text)
        if self.opens_thought and not thought:
            return ""
        # One that was cut has no end.
        said = said.partition(start)[0] if start else said
        return said.lstrip() if thought else said

    @property
    def think_marks(self) -> tuple[str, str]:
        """What thoughts begin and end with, by mlx-lm; "" for none."""
        if not getattr(self.tokenizer, "has_thinking", False):
            return "", ""
        return str(self.tokenizer.think_start), str(self.tokenizer.think_end)

    @cached_property
    def opens_thought(self) -> bool:
        """Whether the template itself begins to think where an answer begins."""
        start, end = self.think_marks
        known, asked = bool(start) and self.has_template, self._asked
        return known and asked.rfind(start) > asked.rfind(end)

    @cached_property
    def shown_lead(self) -> str:
        """White space or a header that the template writes before an answer, unless decoding drops
        it."""
        shown = self.decode(self.encode_behind(self._asked, f"{self._lead}a"))
        return self._lead if shown.startswith(self._lead) else ""

    def written_end(self, text: str = "") -> tuple[int, ...]:
        """The end token that the template itself writes after an answer of this `text` that others
        follow, or none; none if the text has it."""
        if self.eos.intersection(self.encode(text[-NEAR:])[-1:]):
            return ()
        ordinary = self._kept_end or self.end_in(self._ending)
        return self.end_of_calls if self._in_call(text) else ordinary

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

    def as_in_history(self, role: str, written: str) -> str:
        """What was written of a turn, ended as those that others follow."""
        if role == "assistant" and self._kept_end and written.endswith(self._ending):
            return written.removesuffix(self._ending) + self._closing
        return written

    def ends_itself(self, text: str) -> bool:
        """Whether the text of an answer has headers of its own, or what ends a call."""
        own = self.header and text.startswith(self.special_in(self.header))
        called = self.end_of_calls and text.endswith(self.decode(self.end_of_calls))
        return bool(own or called)

    def _in_call(self, text: str) -> bool:
        """Whether an answer of this text has a call last, which its result or its end follows."""
        if self.header:
            return any(map(called, headers(text)[-1:]))
        return bool(self._call_mark) and text.endswith(self._call_mark)

    def before_result(self, behind: Sequence[int], *, within: bool) -> str:
        """What stands before a result `behind` these tokens, if it stands `within` the answer that
        called, and not in a turn of its own."""
        if self.header or not self.end_of_calls or tuple(behind[-1:]) == self.end_of_calls:
            return ""
        open_call = behind and behind[-1] not in self.eos and self._in_call(self.decode(behind))
        end = self.decode(self.end_of_calls)
        if open_call:
            return ""
        return end if within else self.asks + end

    def end_for_next(self, tokens: Sequence[int]) -> str:
        """The end token that an answer's `tokens` end with, where white space at most stands
        behind answers and the next turn may begin with it."""
        ended = tokens and tokens[-1] in self.eos and not self._closing.strip()
        end = self.decode(tokens[-1:]) if ended else ""
        return end if end.strip() or not self._closing else ""

    def writes_like(self, other: "AnswerText") -> bool:
        """Whether both templates write the same behind an answer that a question follows."""
        return self._followed == other._followed

    def closing_after(self, tokens: Sequence[int], *, answered: bool, role: str = "user") -> str:
        """Closing text that an answer of these `tokens` still lacks before a turn of `role`, if it
        was `answered` at all.

        An answer that ended by itself sampled the end-of-turn token; one that was cut
        lacks all of the closing.
        """
        if not answered or not self._closing:
            return ""
        last = tuple(tokens[-1:])
        if self.header and not tokens:
            return self.header + self._closing
        if last and last == self._kept_end:
            return ""
        if self.end_of_calls and (self.header or role == "tool"):
            if last == self.end_of_calls:
                return ""
            if self._in_call(self.decode(tokens)):
                return self.decode(self.end_of_calls)
        elif last and last == self.end_of_calls:
            return self._closing
        begun = self.end_for_next(tokens)
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
        if first := self.special_in(self._followed):
            return first
        raise TemplateError(REWRITES)
