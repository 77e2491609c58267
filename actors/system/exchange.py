"""Agents to files and back: `AgentSystem.export_agent` and `import_agent`.

The formats are bytes and NumPy (kvactors.persistence.formats.registry); the store is touched on the
persistence actor's thread, and float KV is quantized on the GPU actor's. What needs no model
is in `kvactors.actors.system.export`, and the command line calls it without one.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kvactors.actors.agents.handle import Agent
from kvactors.actors.agents.host import AgentHost
from kvactors.actors.system.export import export_stored, loadable_name, unwatched
from kvactors.actors.system.lifecycle import Lifecycle
from kvactors.actors.system.parameters import check_flags
from kvactors.actors.system.registry import AgentRegistry
from kvactors.actors.system.spawned import restored
from kvactors.actors.turns.checks import check_callable, check_id, check_path
from kvactors.actors.turns.messages_gpu import EncodeFloats
from kvactors.actors.turns.messages_store import WithStore
from kvactors.actors.turns.prompt import check_token_ids
from kvactors.core.cache.segment import Segment
from kvactors.core.cache.spec import LayerSpec
from kvactors.core.conversation.hashing import tokens_hash
from kvactors.core.conversation.transcript import Transcript
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import InvalidInput
from kvactors.core.model.info import ModelInfo
from kvactors.persistence.commit.save import Save
from kvactors.persistence.errors import ImportRejected
from kvactors.persistence.files.home import expanded
from kvactors.persistence.formats.archive import OnStep, import_archive, is_archive
from kvactors.persistence.formats.fields import TensorTable
from kvactors.persistence.formats.kv_arrays import segment_tensors
from kvactors.persistence.formats.neutral import (
    Arrays,
    LayerLayout,
    LayoutUnsupported,
    Target,
    parse_layout,
)
from kvactors.persistence.formats.registry import ARCHIVE, FORMATS, read_memory
from kvactors.persistence.store.new_agent import add_agent
from kvactors.persistence.store.store import Store

__all__ = ["AgentExchange", "check_format"]


class AgentExchange:
    """Writes `agents` of one system to files, and makes agents of files; `lifecycle` has its
    actors, `host` its model."""

    def __init__(self, lifecycle: Lifecycle, host: AgentHost, agents: AgentRegistry) -> None:
        self._lifecycle = lifecycle
        self._host = host
        self._agents = agents

    def export_agent(
        self,
        agent_id: str,
        path: str | Path,
        *,
        format: str = ARCHIVE,
        on_step: OnStep = unwatched,
    ) -> None:
        """Write the stored agent `agent_id` to a new file at `path`: its finished turns, and their
        KV.

        `format`: "archive" (all there is, to move the agent), "q4-flat", "q4-blocks", "fp16-flat"
        or "mlx-lm" (tokens and KV under this model). `on_step(done, steps)` is called while it is
        written. Saves of other agents wait meanwhile. Raises AgentNotStored, ExportRejected,
        LedgerUnreadable, SaveFailed, InvalidInput, OSError.
        """
        check_id(agent_id)
        check_path("path", path)
        check_format(format)
        check_callable("on_step", on_step)
        self._lifecycle.require_running()
        info, file = self._host.info, expanded(path)

        def remember(records: Sequence[dict[str, Any]]) -> tuple[list[int], str]:
            tokens = Transcript.restore(info.chat, info.tokenizer_id, records).token_ids
            return tokens, info.chat.decode(tokens)

        def work(store: Store) -> None:
            export_stored(
                store,
                agent_id,
                file,
                format,
                model=info.name,
                model_type=info.model_type,
                fingerprint=info.fingerprint,
                remember=remember,
                on_step=on_step,
            )

        self._with_store(work, agent_id)

    def import_agent(
        self,
        path: str | Path,
        agent_id: str,
        *,
        format: str | None = None,
        tokens: Sequence[int] | None = None,
        of_this_model: bool = False,
        on_step: OnStep = unwatched,
    ) -> Agent:
        """Make an agent, `agent_id`, of the file at `path`, stored and warm: whole, or not at all.

        `format` None finds it out. `tokens`: the token ids of KV whose file has none.
        `of_this_model`: where the file names no model, as a cache that mlx-lm saved without
        metadata, its KV is of the loaded one; its shapes are checked all the same.
        `on_step(done, steps)` is called while it is read. A format without turns becomes one raw
        turn, its text decoded from the tokens. Raises AgentExists, ImportRejected (ModelMismatch,
        TokensMissing), InvalidInput, OSError.
        """
        check_id(agent_id)
        check_path("path", path)
        check_format(format)
        check_flags(of_this_model=of_this_model)
        check_callable("on_step", on_step)
        self._lifecycle.require_running()
        if tokens is not None:
            # Which of them the vocabulary lacks is said with the file's other faults.
            tokens = check_token_ids(tokens, 1 << 31)
        file = expanded(path)
        work = self._import(file, agent_id, format, tokens, on_step, trusted=of_this_model)
        return self._agents.add(agent_id, lambda: self._with_store(work))

    def _import(
        self,
        path: Path,
        agent_id: str,
        form: str | None,
        tokens: Sequence[int] | None,
        on_step: OnStep,
        *,
        trusted: bool,
    ) -> Callable[[Store], None]:
        """What stores the agent of a file, once the file is read and checked."""
        if form in (ARCHIVE, None) and is_archive(path):
            if tokens is not None or trusted:
                said = "its tokens, and of which model: leave tokens and of_this_model out"
                raise InvalidInput(f"{path} is an archive, which says {said}")
            info = self._host.info

            def check(records: Sequence[dict[str, Any]]) -> Transcript:
                return restored(info, agent_id, records, None)

            return lambda store: import_archive(store, path, agent_id, on_step, check)
        if form == ARCHIVE:
            raise ImportRejected("file", f"{path} is no archive")
        save = self._read(path, agent_id, form, tokens, on_step, trusted=trusted)
        return lambda store: add_agent(store, agent_id, [save])

    def _read(
        self,
        path: Path,
        agent_id: str,
        form: str | None,
        tokens: Sequence[int] | None,
        on_step: OnStep,
        *,
        trusted: bool,
    ) -> Save:
        from kvactors.core.arena.wire import layout
        from kvactors.core.engine.hot_cache import ranges_to_save

        info = self._host.info
        described = layout(info.spec)
        try:
            target = _target(info, parse_layout(described), trusted=trusted)
        except LayoutUnsupported as error:
            raise ImportRejected("layers", f"the loaded model has {error}: use archive") from error
        size, done = path.stat().st_size, 0

        def seen(data: bytes) -> None:
            nonlocal done
            done += len(data)
            on_step(done, size)

        found = read_memory(path, form, target, tokens, seen)
        layers = [
            self._encoded(spec, layer, arrays)
            for spec, layer, arrays in zip(
                info.spec.layers, target.layout, found.layers, strict=True
            )
        ]
        segments = tuple(
            Segment(
                start,
                end,
                tokens_hash(found.token_ids[:end]),
                described,
                segment_tensors(layers, target.layout, start, end),
            )
            for start, end in ranges_to_save(0, found.covered)
        )
        text = info.chat.decode(found.token_ids)
        transcript = Transcript(info.chat, info.tokenizer_id)
        record = transcript.extend([Turn("user", text, found.token_ids, text, raw=True)])
        return Save(agent_id, (record,), info.fingerprint, segments)

    def _encoded(self, spec: LayerSpec, layer: LayerLayout, arrays: Arrays) -> Arrays:
        """A layer's arrays as the model stores them; floats are brought into that form."""
        if arrays.keys() == layer.widths().keys() and all(
            arrays[name].dtype == dtype for name, (dtype, _) in layer.widths().items()
        ):
            return arrays
        dtype, array = arrays["values"]
        floats = ("values", dtype, array.shape, array.tobytes())
        raw = self._lifecycle.ask(self._lifecycle.gpu, EncodeFloats(spec, floats))
        table = TensorTable(raw)
        return {
            name: table.take(name, (kept,), (2, layer.kv_heads, None, width))
            for name, (kept, width) in layer.widths().items()
        }

    def _with_store(self, work: Callable[[Store], None], agent_id: str = "") -> None:
        store = self._lifecycle.require_store("import and export need")
        self._lifecycle.ask(store, WithStore(work, agent_id))


def _target(info: ModelInfo, layout: tuple[LayerLayout, ...], *, trusted: bool) -> Target:
    return Target(
        loadable_name(info.name),
        info.model_type,
        info.fingerprint,
        layout,
        info.spec.vocab_size,
        info.spec.context,
        info.memory_budget,
        trusted,
    )


def check_format(form: str | None) -> None:
    """Raise InvalidInput for a name that is no format's."""
    if form is not None and (not isinstance(form, str) or form not in FORMATS):
        raise InvalidInput(f"format must be one of {', '.join(FORMATS)}, not {form!r}")
