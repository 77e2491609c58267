"""What a store has of an agent, written to a file. Needs no model, and loads none."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kvactors.core.options import DEFAULT_MODEL
from kvactors.core.transcript import tokens_hash
from kvactors.persistence.archive import OnStep, export_archive
from kvactors.persistence.atomic import new_file
from kvactors.persistence.errors import ExportRejected, ImportRejected
from kvactors.persistence.format_mlx_lm import SUFFIX
from kvactors.persistence.formats import ARCHIVE, encode_memory
from kvactors.persistence.interchange import Memory, parse_layout
from kvactors.persistence.kv_arrays import layers_of
from kvactors.persistence.store import Store

__all__ = ["export_stored", "loadable_name", "unwatched"]


def unwatched(_done: int, _steps: int) -> None:
    """Progress that nobody looks at."""


def export_stored(
    store: Store,
    agent_id: str,
    path: Path,
    form: str,
    *,
    model: str,
    fingerprint: str | None = None,
    decode: Callable[[Sequence[int]], str] | None = None,
    on_step: OnStep = unwatched,
) -> None:
    """Write what a store has of an agent to a new file. Persistence thread.

    `fingerprint` chooses the KV, by its beginning; None is the only one there is. Without
    `decode` (a tokenizer) the text is that of the turns, without what a template adds.
    Raises ExportRejected, LedgerUnreadable, OSError.
    """
    if form == ARCHIVE:
        export_archive(store, agent_id, path, on_step)
        return
    if form == "mlx-lm" and path.suffix != SUFFIX:
        raise ExportRejected(f"mlx_lm reads only files named *{SUFFIX}, not {path.name}")
    memory = _stored_memory(store, agent_id, model, fingerprint, decode)
    chunks = encode_memory(memory, form)
    with new_file(path) as file:
        for place, chunk in enumerate(chunks, start=1):
            file.write(chunk)
            on_step(place, len(chunks))


def _stored_memory(
    store: Store,
    agent_id: str,
    model: str,
    fingerprint: str | None,
    decode: Callable[[Sequence[int]], str] | None,
) -> Memory:
    records = store.read_ledger(agent_id)
    if records is None:
        raise ExportRejected(f"no agent {agent_id!r} in {store.root}: there is nothing to export")
    chosen = _choose(agent_id, store.fingerprints(agent_id), fingerprint)
    segments = store.read_kv(agent_id, chosen)
    if not segments:
        raise ExportRejected(_no_kv(agent_id))
    covered = segments[-1].end
    token_ids = _token_ids(records)
    if tokens_hash(token_ids[:covered]) != segments[-1].tokens_hash:
        raise ExportRejected(
            f"the stored KV is not of the tokens in {agent_id!r}'s ledger (another tokenizer, or "
            "a memory that was cut): ask it once, or use archive"
        )
    layout = parse_layout(segments[0].layout)
    try:
        layers = layers_of([segment.tensors for segment in segments], layout)
    except ImportRejected as error:
        raise ExportRejected(
            f"the KV of {agent_id!r} is not as its layout says: {error}"
        ) from error
    text = "".join(_texts(records)) if decode is None else decode(token_ids)
    return Memory(
        agent_id, loadable_name(model), chosen, tuple(token_ids), text, covered, layout, layers
    )


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
        f"no KV of {agent_id!r} under this model is stored: ask it once, or use archive, which "
        "needs none"
    )


def _token_ids(records: Sequence[dict[str, Any]]) -> list[int]:
    """All token ids of ledger records (their form: kvactors.core.transcript)."""
    data = b"".join(turn["tokens"] for record in records for turn in record["turns"])
    return [int(token) for token in np.frombuffer(data, dtype="<u4")]


def _texts(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    for record in records:
        yield record.get("system") or ""
        yield from (turn["text"] for turn in record["turns"])


def loadable_name(model: str) -> str:
    """The name under which other programs find a model."""
    return str(DEFAULT_MODEL) if model == "default" else model
