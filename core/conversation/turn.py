"""One turn of a conversation, and its form in the ledger. Pure: any thread."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvactors.core.conversation.token_text import NO_VARIABLES
from kvactors.core.errors import InvalidConfig, InvalidInput
from kvactors.core.text import check_texts

__all__ = [
    "MOST_TOLD",
    "UNBEGUN",
    "Source",
    "Turn",
    "answered",
    "beginnings",
    "check_template_kwargs",
    "from_entry",
    "to_entry",
]

# Characters of what one turn tells a chat template.
MOST_TOLD = 16 << 10


@dataclass(frozen=True, slots=True)
class Source:
    """A turn as the ledger has it, and the tokenizer that made it. `answered`: an answer
    follows it in its record."""

    tokenizer_id: str
    entry: dict[str, Any]
    answered: bool


@dataclass(frozen=True, slots=True)
class Turn:
    """One contribution to the conversation.

    `text` is what was said, `token_ids` what was appended to the cache for it, `rendered` the
    text that those stand for: template, end of turn and stop strings included. `raw` marks a
    prompt that no template rendered, and its answer. `finish` is set on answers; "cut" is one
    that a rewind or a diverging prompt cut in the middle. `asked`: the assistant was to answer
    it. `stands_for` counts the earlier turns that it is a summary of. The first `begun` tokens of
    an answer were there when it was gone on with. `told`: what the template was
    told for it beside the usual. `source` is set where another tokenizer made the turn.
    """

    role: str
    text: str
    token_ids: tuple[int, ...]
    rendered: str
    raw: bool = False
    finish: str | None = None
    stands_for: int = 0
    asked: bool = field(default=False, compare=False)
    told: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    source: Source | None = field(default=None, compare=False, repr=False)
    begun: int = 0

    @property
    def is_answer(self) -> bool:
        """Whether it answers the turn before it, in that turn's rendering."""
        return self.finish is not None

    @property
    def hidden(self) -> str:
        """What an answer ended with and its asker never saw: end of turn, stop string."""
        end = self.rendered.find(self.text) + len(self.text)
        return self.rendered[end:] if self.is_answer else ""


UNBEGUN = Turn("assistant", "", (), "", finish="cut")
"""The beginning of an answer that begins with nothing."""


def from_entry(source: Source, decode: Callable[[Sequence[int]], str]) -> Turn:
    """A stored turn. Version 1 did not store what its tokens stand for."""
    entry, text = source.entry, source.entry["text"]
    ids = tuple(int(t) for t in np.frombuffer(entry["tokens"], dtype="<u4"))
    rendered = text.join(entry["around"]) if "around" in entry else decode(ids)
    return Turn(
        entry["role"],
        text,
        ids,
        rendered,
        entry["raw"],
        entry["finish"],
        entry.get("stands_for", 0),
        source.answered,
        entry.get("template_kwargs"),
        begun=entry.get("begun", 0),
    )


def answered(finishes: Sequence[str | None]) -> list[bool]:
    """For each turn of a record, by how they finished, whether an answer follows it there."""
    following = zip(finishes, [*finishes[1:], None], strict=False)
    return [after is not None for _, after in following]


def to_entry(turn: Turn) -> dict[str, Any]:
    """A turn as the ledger has it. `text.join(around)` is its rendered text."""
    entry = {
        "role": turn.role,
        "text": turn.text,
        "tokens": np.asarray(turn.token_ids, dtype="<u4").tobytes(),
        "raw": turn.raw,
        "finish": turn.finish,
        "around": turn.rendered.split(turn.text, 1) if turn.text else [turn.rendered],
    }
    if turn.told:
        entry["template_kwargs"] = turn.told
    if turn.stands_for:
        entry["stands_for"] = turn.stands_for
    if turn.begun:
        entry["begun"] = turn.begun
    return entry


def beginnings(
    before: Sequence[Turn], closing: Callable[[Sequence[Turn], int], str], back: int
) -> Iterator[str]:
    """What the rendering of a prompt behind the turns `before` may begin with, one after the other:
    what they lack, by `closing`, and so many further `back`."""
    answered = bool(before) and before[-1].is_answer
    yield closing(before, back) if answered else ""
    if before and back and not answered:
        yield closing(before, back - 1)


def check_template_kwargs(
    given: object, error: type[InvalidInput] = InvalidConfig, most: int | None = None
) -> str:
    """What is `given`, as JSON of `most` characters. Raises `error` for what is no dict by name, or
    would identify a model's KV in this process alone, or is no variable of a template."""
    if given is not None and not isinstance(given, dict):
        raise error(f"template_kwargs must be a dict, not {given!r:.80}")
    for name in given or ():
        if not isinstance(name, str):
            raise error(f"template_kwargs are named by strings, not {name!r:.80}")
        if name in NO_VARIABLES:
            raise error(f"template_kwargs are what the chat template reads, and {name} is not")
    try:
        check_texts("template_kwargs", given, error)
        written = json.dumps(given, sort_keys=True, allow_nan=False)
        json.loads(written, parse_int=_small)
    except error:
        raise
    except (TypeError, ValueError, RecursionError) as failure:
        raise error(f"template_kwargs must have a JSON form: {failure}") from failure
    if most is not None and len(written) > most:
        raise error(f"template_kwargs of a turn have {most} characters as JSON, not {len(written)}")
    return written


def _small(written: str) -> int:
    """A whole number as JSON has it. Raises ValueError for one that a ledger cannot keep."""
    found = int(written)
    if not -(2**63) <= found < 2**64:
        raise ValueError(f"{written:.40} has more than 64 bits")
    return found
