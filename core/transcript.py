"""Transcript: an agent's memory as text and token ids, turn by turn. Append-only.

It is the truth that the KV cache is computed from. Turns carry their role and text, so that
another model can render them again, and the token ids that this tokenizer made of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from kvactors.core.errors import SystemPromptMismatch
from kvactors.core.template import ChatFormat

__all__ = ["Transcript", "Turn", "common_prefix", "tokens_hash"]

RECORD_VERSION = 1


@dataclass(frozen=True, slots=True)
class Turn:
    """One contribution to the conversation.

    `text` is what was said, `token_ids` what was appended to the cache for it, template
    included. `raw` marks a prompt that was given as token ids. `finish` is set on answers.
    """

    role: str
    text: str
    token_ids: tuple[int, ...]
    raw: bool = False
    finish: str | None = None


def tokens_hash(tokens: Iterable[int]) -> str:
    """Hash of token ids, to tell whether stored KV belongs to a transcript's beginning."""
    return xxhash.xxh3_128_hexdigest(np.asarray(list(tokens), dtype="<u4").tobytes())


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading token ids two sequences share."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:
        return shorter
    # Bisecting over slices compares in C; the loop runs log2(n) times.
    low, high = 0, shorter - 1
    while low < high:
        middle = (low + high + 1) // 2
        if first[:middle] == second[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Transcript:
    """The turns of one agent under one tokenizer. Owned by its agent actor.

    `tokenizer_id` names the tokenizer and template that made the ids; turns that another
    one made are rendered again by `restore`.
    """

    def __init__(
        self, chat: ChatFormat, tokenizer_id: str, system_prompt: str | None = None
    ) -> None:
        self.chat = chat
        self.tokenizer_id = tokenizer_id
        self.system_prompt = system_prompt
        self.turns: list[Turn] = []

    @classmethod
    def restore(
        cls, chat: ChatFormat, tokenizer_id: str, records: Iterable[dict[str, Any]]
    ) -> "Transcript":
        """Rebuild from ledger records, in their order. Raises ValueError or KeyError."""
        transcript = cls(chat, tokenizer_id)
        for record in records:
            if record["version"] != RECORD_VERSION:
                raise ValueError(f"version {record['version']!r}, not {RECORD_VERSION}")
            if "system" in record:
                transcript.system_prompt = record["system"]
            own = record["tokenizer"] == tokenizer_id
            answered = len(record["turns"]) > 1
            for entry in record["turns"]:
                transcript.turns.append(transcript._revive(entry, own, answered))
        return transcript

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

    def render(self, role: str, text: str, *, answer: bool) -> list[int]:
        """Token ids that a new text turn appends, closing tokens of the last one included."""
        if not self.turns:
            first = self.chat.opening(role, text, system=self.system_prompt, answer=answer)
            return self.chat.encode(first)
        last = self.turns[-1]
        answered = last.role == "assistant" and last.finish is not None and not last.raw
        closing = self.chat.closing_after(last.token_ids, answered)
        return self.chat.encode(closing + self.chat.following(role, text, answer=answer))

    def extend(self, turns: Iterable[Turn]) -> dict[str, Any]:
        """Append finished turns; returns the ledger record that makes them durable."""
        turns = list(turns)
        record: dict[str, Any] = {
            "version": RECORD_VERSION,
            "tokenizer": self.tokenizer_id,
            "turns": [
                {
                    "role": turn.role,
                    "text": turn.text,
                    "tokens": np.asarray(turn.token_ids, dtype="<u4").tobytes(),
                    "raw": turn.raw,
                    "finish": turn.finish,
                }
                for turn in turns
            ],
        }
        if not self.turns and self.system_prompt is not None:
            record["system"] = self.system_prompt
        self.turns += turns
        return record

    def _revive(self, entry: dict[str, Any], own: bool, answered: bool) -> Turn:
        """A stored turn; made with another tokenizer, it is rendered again from its text."""
        role, text, finish = entry["role"], entry["text"], entry["finish"]
        if own:
            ids = tuple(int(t) for t in np.frombuffer(entry["tokens"], dtype="<u4"))
            return Turn(role, text, ids, entry["raw"], finish)
        if entry["raw"]:
            ids = tuple(self.chat.encode(text))
        elif role == "assistant" and finish is not None:
            ended = self.chat.end_of_turn if finish == "stop" else ()
            ids = (*self.chat.encode(text), *ended)
        else:
            ids = tuple(self.render(role, text, answer=answered))
        return Turn(role, text, ids, entry["raw"], finish)
