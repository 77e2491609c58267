"""Whether ledger records have the form that `kvactors.core.conversation.transcript` gives them.
Pure: any thread."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvactors.core.conversation.transcript import READABLE_VERSIONS
from kvactors.core.conversation.turn import MOST_TOLD, check_template_kwargs
from kvactors.core.errors import InvalidInput

__all__ = ["TOKEN_BYTES", "check_records"]

TOKEN_BYTES = 4
"""Of each token id in a turn's `tokens`."""


def check_records(records: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError for the first of an agent's `records` that has another form."""
    turns = 0
    for number, record in enumerate(records):
        keep = record.get("keep", turns)
        entries = record.get("turns")
        right = (
            record.get("version") in READABLE_VERSIONS
            and isinstance(record.get("tokenizer"), str)
            and isinstance(record.get("system", ""), str | None)
            and isinstance(record.get("request", ""), str)
            and type(keep) is int
            and 0 <= keep <= turns
            and isinstance(entries, list | tuple)
            and all(map(_is_turn, entries))
        )
        if not right:
            raise ValueError(f"record {number} is none of a transcript")
        assert isinstance(entries, list | tuple)
        turns = keep + len(entries)


def _is_turn(entry: Any) -> bool:
    if not isinstance(entry, Mapping):
        return False
    tokens, around = entry.get("tokens"), entry.get("around", ())
    return (
        all(isinstance(entry.get(name), str) for name in ("role", "text"))
        and isinstance(tokens, bytes)
        and len(tokens) % TOKEN_BYTES == 0
        and isinstance(entry.get("raw"), bool)
        and isinstance(entry.get("finish", 0), str | None)
        and isinstance(around, list | tuple)
        and all(isinstance(part, str) for part in around)
        and type(entry.get("stands_for", 0)) is int
        and _is_told(entry.get("template_kwargs"))
    )


def _is_told(told: Any) -> bool:
    try:
        check_template_kwargs(told, InvalidInput, MOST_TOLD)
    except InvalidInput:
        return False
    return True
