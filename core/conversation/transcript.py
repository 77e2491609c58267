"""Transcript: an agent's memory as text and token ids, turn by turn. Its agent's thread only.

It is the truth that the KV cache is computed from. Turns carry their role and text, so that
another model can render them again, and the token ids that this tokenizer made of them.

The ledger that makes it durable is append-only. A record says how many turns of all before
it are kept (`keep`; all, if it is not there) and which follow:

    {"version": 2, "tokenizer": ..., "turns": [q1, a1]}            q1 a1
    {"version": 2, "tokenizer": ..., "turns": [q2, a2]}            q1 a1 q2 a2
    {"version": 2, "tokenizer": ..., "keep": 2, "turns": [q3, a3]} q1 a1 q3 a3

A summary of turns that left the context has `stands_for`, their number. A prompt for which the
chat template was told more than usual has that as `template_kwargs`. A record of a turn that was
asked with a request id has it as `request`.

Under another tokenizer a turn is rendered and tokenized again from its text, and keeps its
`source`: under the first one it is again, to the token, what it was.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

from kvactors.core.conversation.answered import AnsweredRequests
from kvactors.core.conversation.chat_format import ChatFormat
from kvactors.core.conversation.token_offsets import token_boundary, written_ends, written_within
from kvactors.core.conversation.tool_format import last_answer, told_by_user
from kvactors.core.conversation.turn import Source, Turn, answered, beginnings, from_entry, to_entry
from kvactors.core.errors import SystemPromptMismatch, TemplateError

__all__ = ["Transcript", "as_asked", "as_told"]

RECORD_VERSION = 2
READABLE_VERSIONS = (1, 2)
PROBE = "kvactors probe"
# Prompts in a row of which each was cut: further back nobody looks for what is lacking.
_MOST_CUT = 8


class Transcript:
    """The turns of one agent under one tokenizer. Owned by its agent actor.

    `tokenizer_id` names the tokenizer of `chat`, whatever its template; turns that another one made
    are rendered again by `restore`. `system_prompt`: what its first turn begins with.
    """

    def __init__(
        self, chat: ChatFormat, tokenizer_id: str, system_prompt: str | None = None
    ) -> None:
        self.chat = chat
        self.tokenizer_id = tokenizer_id
        self.system_prompt = system_prompt
        self.turns: list[Turn] = []
        self.answered = AnsweredRequests()

    @classmethod
    def restore(
        cls, chat: ChatFormat, tokenizer_id: str, records: Iterable[dict[str, Any]]
    ) -> "Transcript":
        """Rebuild from ledger `records`, in their order, under this `chat` and `tokenizer_id`.
        Raises TypeError, ValueError, KeyError."""
        transcript = cls(chat, tokenizer_id)
        for record in records:
            transcript.replay(record)
        return transcript

    def replay(self, record: dict[str, Any]) -> None:
        """Go on with the next ledger `record`. Raises TypeError, ValueError, KeyError."""
        if record["version"] not in READABLE_VERSIONS:
            raise ValueError(f"version {record['version']!r}, not {READABLE_VERSIONS}")
        keep = record.get("keep", len(self.turns))
        if not 0 <= keep <= len(self.turns):
            raise ValueError(f"a record keeps {keep} turns of {len(self.turns)}")
        self.turns = self.turns[:keep]
        self.system_prompt = record.get("system", self.system_prompt)
        entries = record["turns"]
        finishes = answered([entry["finish"] for entry in entries])
        for entry, asked in zip(entries, finishes, strict=True):
            self.turns.append(self._read(Source(record["tokenizer"], entry, asked)))
        if "request" in record:
            self.answered.note(record["request"], self.turns, len(entries))

    def under(self, chat: ChatFormat, tokenizer_id: str) -> "Transcript":
        """The same memory under another model's tokenizer, or itself. Raises TemplateError."""
        if chat is self.chat:
            return self
        other = Transcript(chat, tokenizer_id, self.system_prompt)
        read = dict[int, Turn]()

        def again(turn: Turn) -> Turn:
            if id(turn) not in read:
                own = Source(self.tokenizer_id, to_entry(turn), turn.asked)
                read[id(turn)] = other._read(turn.source or own)
            return read[id(turn)]

        for turn in self.turns:
            other.turns.append(again(turn))
        other.answered = self.answered.under(again)
        return other

    def copy(self) -> "Transcript":
        """The same memory, for another agent."""
        other = Transcript(self.chat, self.tokenizer_id, self.system_prompt)
        other.turns, other.answered = list(self.turns), self.answered.copy()
        return other

    @property
    def token_ids(self) -> list[int]:
        """All token ids, a new list."""
        return [token for turn in self.turns for token in turn.token_ids]

    def require_system_prompt(self, asked: str | None) -> None:
        """Raise SystemPromptMismatch if `asked` is given and is not the agent's own."""
        if asked is not None and asked != self.system_prompt:
            raise SystemPromptMismatch(
                f"the agent has the system prompt {self.system_prompt!r}, not {asked!r}; leave "
                "system_prompt unset, or forget the agent first"
            )

    # -- turns that are not part of it yet ---------------------------------------------

    def render(self, role: str, text: str, *, answer: bool) -> Turn:
        """A `text` turn of this `role` behind the last one, whose closing it begins with. `answer`:
        the assistant is to answer it."""
        rendered = self.rendering(role, text, answer=answer)
        encode = self.chat.encode if self.turns else self.chat.encode_opening
        ids = tuple(encode(rendered))
        return Turn(role, text, ids, rendered, asked=answer, told=self.chat.more)

    def rendering(
        self, role: str, text: str, *, answer: bool, after: Sequence[Turn] | None = None
    ) -> str:
        """The rendering of `role`, `text` and `answer` behind the turns `after` (default: all)."""
        after = self.turns if after is None else after
        return self._closing(after, role=role) + self._frame(role, text, after, answer=answer)

    def answer(
        self,
        tokens: Sequence[int],
        finish: str,
        *,
        raw: bool = False,
        stop: Sequence[str] = (),
        begun: int = 0,
    ) -> Turn:
        """The turn of an answer whose `tokens` were decoded until `finish`, but for the first
        `begun` of them; `raw`: to a prompt without template; `stop`: strings that end it and are
        not part of its text."""
        text, hidden = self.chat.reply_parts(tokens, stop, begun)
        kept = tuple(tokens) if raw else self.chat.kept(tokens)
        if kept != tuple(tokens):
            said, put = self.chat.decode(tokens[-1:]), self.chat.decode(kept[-1:])
            hidden = hidden.removesuffix(said) + put
        return Turn("assistant", text, kept, text + hidden, raw, finish, begun=begun)

    def given_answer(self, text: str, finish: str = "stop") -> Turn:
        """The turn of an answer that is known as text only."""
        ids = self.chat.encode_answer(text)
        ended = self.chat.written_end(text) if finish == "stop" else ()
        rendered = self.chat.answer_text(text) + self.chat.decode(ended)
        return Turn("assistant", text, (*ids, *ended), rendered, finish=finish)

    def head(self, turn: Turn, characters: int) -> Turn:
        """The tokens of one of its turns that lie within the first characters of that turn's
        rendered text."""
        ends = _ends(self.chat, turn)
        return self._cut(turn, ends, token_boundary(ends, characters))

    def cut(self, turn: Turn, tokens: int) -> Turn:
        """The first `tokens` tokens of one of its turns, and what characters are whole in them."""
        return self._cut(turn, _ends(self.chat, turn), tokens)

    # -- what is remembered ------------------------------------------------------------

    def extend(
        self,
        turns: Iterable[Turn],
        keep: int | None = None,
        system_prompt: str | None = None,
        request_id: str | None = None,
    ) -> dict[str, Any]:
        """Append finished turns behind the first `keep` (default: all); returns the ledger
        record that makes it durable. `system_prompt` is set where none are kept; `request_id`: they
        are what was asked, and answered, under this id."""
        turns = list(turns)
        # As the record will give them back.
        turns = [
            replace(turn, source=None, asked=asked)
            for turn, asked in zip(turns, answered([t.finish for t in turns]), strict=True)
        ]
        keep = len(self.turns) if keep is None else keep
        record: dict[str, Any] = {
            "version": RECORD_VERSION,
            "tokenizer": self.tokenizer_id,
            "turns": [to_entry(turn) for turn in turns],
        }
        if keep < len(self.turns):
            record["keep"] = keep
        if keep == 0 and system_prompt is not None:
            self.system_prompt = system_prompt
        if keep == 0 and self.system_prompt is not None:
            record["system"] = self.system_prompt
        self.turns = [*self.turns[:keep], *turns]
        if request_id is not None:
            record["request"] = request_id
            self.answered.note(request_id, self.turns, len(turns))
        return record

    def _frame(self, role: str, text: str, after: Sequence[Turn], *, answer: bool) -> str:
        """A text turn in its template, from where the turns before it are complete."""
        if after:
            behind = after[-1].token_ids if after[-1].is_answer else ()
            said = last_answer(after)
            return self.chat.following(role, text, answer=answer, behind=behind, said=said)
        return self.chat.opening(role, text, system=self.system_prompt, answer=answer)

    def _closing(self, turns: Sequence[Turn], back: int = _MOST_CUT, *, role: str = "user") -> str:
        """What the last of these turns lacks before one of this `role` may follow; it depends on
        what so many before it lack, at most."""
        if not turns or turns[-1].raw:
            return ""
        *before, last = turns
        if last.is_answer:
            return self.chat.closing_after(last.token_ids, answered=True, role=role)
        # A prompt lacks something if a rewind cut it, or if its answer is gone.
        unanswered, own = self.chat.closing_after((), answered=True), as_asked(self, last.told)
        begin, _, tail = own._frame(last.role, PROBE, before, answer=False).partition(PROBE)
        for head in beginnings(before, self._closing, back):
            for answer in (False, True):
                whole = head + own._frame(last.role, last.text, before, answer=answer)
                if whole.startswith(last.rendered):
                    return whole[len(last.rendered) :] + unanswered * answer
            if last.rendered.startswith(head + begin) and not last.rendered.endswith(tail):
                return tail
        return ""

    def _cut(self, turn: Turn, ends: Sequence[int], tokens: int) -> Turn:
        following = ends[tokens] if tokens < len(ends) else len(turn.rendered) + 1
        characters = max((end for end in ends[:tokens] if end < following), default=0)
        return replace(
            turn,
            text=self._text_within(turn, characters),
            token_ids=turn.token_ids[:tokens],
            rendered=turn.rendered[:characters],
            finish="cut" if turn.is_answer else None,
            asked=False,
        )

    def _text_within(self, turn: Turn, characters: int) -> str:
        """What of a turn's text stands in the first `characters` of what was rendered of it."""
        if turn.is_answer or turn.raw:
            return turn.text[: max(0, characters - turn.rendered.find(turn.text))]
        before = next(self.turns[:at] for at, own in enumerate(self.turns) if own is turn)
        told = partial(as_asked(self, turn.told)._frame, turn.role, after=before, answer=True)
        head = told(PROBE).partition(PROBE)[0]
        start = turn.rendered.find(head) + len(head)
        if start < len(head) or characters <= start:
            return ""
        rest, write = turn.rendered[start:], lambda text: told(text).removeprefix(head)
        return written_within(turn.text, rest, characters - start, write)

    def _read(self, source: Source) -> Turn:
        """A stored turn; rendered again from its text if another tokenizer made it."""
        if source.tokenizer_id == self.tokenizer_id:
            return from_entry(source, self.chat.decode)
        entry = source.entry
        role, text, finish = entry["role"], entry["text"], entry["finish"]
        if entry["raw"]:
            encode = self.chat.encode if self.turns else self.chat.encode_whole
            turn = Turn(role, text, tuple(encode(text)), text, True, finish)
        elif finish is not None:
            turn = self.given_answer(text, finish)
        else:
            if role == "tool" and not self.chat.takes_results:
                role, text = told_by_user(text)
            told = as_asked(self, entry.get("template_kwargs"))
            turn = told.render(role, text, answer=source.answered)
        return replace(turn, stands_for=entry.get("stands_for", 0), source=source)


def as_told(transcript: Transcript, template_kwargs: dict[str, Any] | None) -> Transcript:
    """The same memory, only to be read, whose template is told this too. Raises TemplateError."""
    seen = copy(transcript)
    seen.chat = transcript.chat.usual.told(template_kwargs)
    return seen


def as_asked(transcript: Transcript, told: dict[str, Any] | None) -> Transcript:
    """As `as_told` was when a turn of it was `told` this; itself if its template refuses it now."""
    try:
        return as_told(transcript, told)
    except TemplateError:
        return transcript


def _ends(chat: ChatFormat, turn: Turn) -> list[int]:
    return written_ends(chat.decode, chat.begins, turn.token_ids, turn.rendered)
