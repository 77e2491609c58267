"""What a store has of an agent, written to a file. Needs no model, and loads none."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvactors.core.cache.segment import Segment
from kvactors.core.conversation.hashing import tokens_hash
from kvactors.core.conversation.records import check_records
from kvactors.core.conversation.transcript import READABLE_VERSIONS
from kvactors.core.model.options import DEFAULT_MODEL
from kvactors.persistence.errors import (
    AgentNotStored,
    ExportRejected,
    ImportRejected,
    NewerFormat,
)
from kvactors.persistence.files.atomic import new_file
from kvactors.persistence.formats.archive import OnStep, export_archive
from kvactors.persistence.formats.kv_arrays import layers_of
from kvactors.persistence.formats.mlx_lm import SUFFIX
from kvactors.persistence.formats.neutral import LayoutUnsupported, PortableMemory, parse_layout
from kvactors.persistence.formats.registry import ARCHIVE, encode_memory
from kvactors.persistence.store.store import Store

__all__ = ["export_stored", "loadable_name", "readable", "unwatched"]


def unwatched(_done: int, _steps: int) -> None:
    """Progress that nobody looks at."""


def export_stored(
    store: Store,
    agent_id: str,
    path: Path,
    form: str,
    *,
    model: str,
    model_type: str = "",
    fingerprint: str | None,
    remember: Callable[[Sequence[dict[str, Any]]], tuple[list[int], str]] | None = None,
    on_step: OnStep = unwatched,
) -> None:
    """Write what a `store` has of `agent_id` to a new file at `path`, of this `form`. Persistence
    thread.

    `model` and `model_type` are written into it, `on_step` is called on the way. `fingerprint`
    chooses the KV, by its beginning; None is the only one there is. `remember` gives the token ids
    and the text that a model makes of ledger records; without it the text is that of the turns,
    without what a template adds. Raises AgentNotStored, ExportRejected, LedgerUnreadable,
    NewerFormat, OSError.
    """
    if form == ARCHIVE:
        export_archive(store, agent_id, path, on_step)
        return
    if form == "mlx-lm" and path.suffix != SUFFIX:
        raise ExportRejected(f"mlx_lm reads only files named *{SUFFIX}, not {path.name}")
    memory = _stored_memory(store, agent_id, model, model_type, fingerprint, remember or _as_stored)
    chunks = encode_memory(memory, form)
    with new_file(path) as file:
        for place, chunk in enumerate(chunks, start=1):
            file.write(chunk)
            on_step(place, len(chunks))


def _stored_memory(
    store: Store,
    agent_id: str,
    model: str,
    model_type: str,
    fingerprint: str | None,
    remember: Callable[[Sequence[dict[str, Any]]], tuple[list[int], str]],
) -> PortableMemory:
    records = store.read_ledger(agent_id)
    if records is None:
        raise AgentNotStored(agent_id, "to export")
    chosen = _choose(agent_id, store.fingerprints(agent_id), fingerprint)
    try:
        token_ids, text = remember(readable(agent_id, records))
        segments = _matching(store.read_kv(agent_id, chosen, used=False), token_ids)
        if not segments:
            raise ExportRejected(_no_kv(agent_id))
        layout = parse_layout(segments[0].layout)
        layers = layers_of([segment.tensors for segment in segments], layout)
    except LayoutUnsupported as error:
        raise ExportRejected(f"the model has {error}: use archive") from error
    except (KeyError, TypeError, ValueError, ImportRejected) as error:
        raise ExportRejected(
            f"what is stored of {agent_id!r} has another form than this version writes: {error!r}"
        ) from error
    return PortableMemory(
        agent_id,
        loadable_name(model),
        model_type,
        chosen,
        tuple(token_ids),
        text,
        segments[-1].end,
        layout,
        layers,
    )


def _matching(segments: Sequence[Segment], token_ids: Sequence[int]) -> Sequence[Segment]:
    """The leading segments whose KV is of these tokens: their hashes cover all before them."""
    for count in range(len(segments), 0, -1):
        last = segments[count - 1]
        if last.end <= len(token_ids) and last.tokens_hash == tokens_hash(token_ids[: last.end]):
            return segments[:count]
    return ()


def _choose(agent_id: str, stored: Sequence[str], asked: str | None) -> str:
    """The fingerprint meant. Raises ExportRejected unless it is exactly one."""
    found = [name for name in stored if name.startswith(asked or "")]
    if len(found) > 1:
        raise ExportRejected(
            f"{agent_id!r} has KV under {', '.join(found)}: say which with its fingerprint, or "
            "use archive, which holds them all"
        )
    if not found:
        raise ExportRejected(_no_kv(agent_id))
    return found[0]


def _no_kv(agent_id: str) -> str:
    return (
        f"no KV of {agent_id!r} that fits its tokens is stored under this model: ask it once, or "
        "use archive, which needs none"
    )


def readable(agent_id: str, records: Iterable[dict[str, Any]] | None) -> tuple[dict[str, Any], ...]:
    """The ledger `records` of `agent_id`, none for None. Raises NewerFormat where a newer version
    wrote one of them, ValueError where one has another form."""
    found = tuple(records or ())
    for record in found:
        version = record.get("version")
        if isinstance(version, int) and version > READABLE_VERSIONS[-1]:
            raise NewerFormat(f"the ledger of {agent_id!r}", version, READABLE_VERSIONS[-1])
    check_records(found)
    return found


def _as_stored(records: Sequence[dict[str, Any]]) -> tuple[list[int], str]:
    """All token ids and text of ledger records (their form:
    kvactors.core.conversation.transcript)."""
    made: list[tuple[str, dict[str, Any]]] = []
    for record in records:
        added = [(record["tokenizer"], turn) for turn in record["turns"]]
        made = [*made[: record.get("keep", len(made))], *added]
    turns = [turn for _, turn in made]
    if len({tokenizer for tokenizer, _ in made}) > 1:
        raise ExportRejected(
            "several models with different tokenizers made these turns: export the agent from a "
            "system that has loaded the one that is meant, or use archive"
        )
    ids = np.frombuffer(b"".join(turn["tokens"] for turn in turns), dtype="<u4")
    system = next((record["system"] for record in reversed(records) if "system" in record), "")
    return ids.tolist(), "".join([system, *(turn["text"] for turn in turns)])


def loadable_name(model: str) -> str:
    """The name under which other programs find a model."""
    return str(DEFAULT_MODEL) if model == "default" else model
