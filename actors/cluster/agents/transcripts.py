"""What an agent remembers, read off copies of its ledger records: without its model. Pure:
any thread."""

from collections.abc import Sequence
from typing import Any, NoReturn

from kvactors.actors.agents.handle import TranscriptView
from kvactors.core.conversation.turn import Source, Turn, answered, from_entry
from kvactors.core.errors import InvalidInput
from kvactors.persistence.files.packing import unpack

__all__ = ["open_record", "read_transcript"]


def read_transcript(agent_id: str, copies: Sequence[bytes]) -> TranscriptView:
    """The transcript in `copies` of all records of an agent, with the token ids that it was stored
    with. Raises InvalidInput where its node seals them."""
    turns: list[Turn] = []
    for copy in copies:
        record = open_record(agent_id, copy)
        turns = [*turns[: record.get("keep", len(turns))], *_turns(record)]
    return TranscriptView(tuple(turns))


def open_record(agent_id: str, copy: bytes) -> dict[str, Any]:
    """The ledger record in a `copy` of one of `agent_id`. Raises InvalidInput where its node seals
    them."""
    try:
        record = unpack(copy)
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise InvalidInput(
            f"the ledger of {agent_id!r} is sealed on its way: connect with the key of its node"
        )
    return record


def _turns(record: dict[str, Any]) -> list[Turn]:
    entries = record["turns"]
    asked = answered([entry["finish"] for entry in entries])
    sources = zip(entries, asked, strict=True)
    return [from_entry(Source(record["tokenizer"], *source), _no_text) for source in sources]


def _no_text(_: Sequence[int]) -> NoReturn:
    raise InvalidInput("a ledger of version 1 has no text of its tokens: read it on its node")
