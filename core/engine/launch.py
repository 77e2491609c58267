"""Launch: everything the GPU thread needs to load a model and start its engine."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvactors.core.errors import InvalidConfig
from kvactors.core.model.info import ModelInfo
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.eviction import EvictionPolicy
from kvactors.core.schedule.speculation.speculation import DraftModel, SpeculationConfig
from kvactors.core.trace import Tracer

if TYPE_CHECKING:
    from kvactors.core.engine.engine import Engine
    from kvactors.core.model.load import LoadedModel

__all__ = ["Launch", "device_memory"]

logger = logging.getLogger(__name__)

# Share of the memory that is free after loading; the rest is for weights' work space,
# the operating system and other programs.
DEFAULT_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Launch:
    """Loads, probes and starts when called, on the GPU thread. Imports MLX only then. One that is
    `swapped` in goes on without a draft model that does not fit it."""

    source: str | Path | Callable[[], Any]
    options: ModelOptions
    max_batch: int
    memory_budget: int | None
    target_latency: float | None
    stored: bool
    speculation: SpeculationConfig | None = None
    eviction: EvictionPolicy | None = None
    max_waiting: int = 100_000
    clock: Callable[[], float] = time.perf_counter
    share: bool = True
    switch_interval: float | None = None
    swapped: bool = False

    def __post_init__(self) -> None:
        if callable(self.source) and self.options.name is None and self.stored:
            raise InvalidConfig(
                "a callable model needs a name of its own to be stored under: pass a named "
                "function, or model_name="
            )

    def check(self) -> None:
        """Raise ModelNotFound for what can be seen to be missing without loading anything."""
        from kvactors.core.model.opening import locate

        if not callable(self.source):
            locate(self.source)
        draft = self._draft
        if draft is not None and not callable(draft.source):
            locate(draft.source)

    def __call__(self, tracer: Tracer) -> "tuple[ModelInfo, Engine]":
        """The loaded model's description and its engine, which tells `tracer` of its work.
        Raises ModelError, InvalidConfig."""
        import mlx.core as mx
        from mlx_lm.utils import maybe_set_recommended_wired_limit

        from kvactors.core.engine.engine import Engine, EngineConfig
        from kvactors.core.model.device_probe import probe_products
        from kvactors.core.model.load import load_model

        loaded = self._with_draft(probe_products(load_model(self.source, self.options)))
        maybe_set_recommended_wired_limit()
        mx.clear_cache()
        budget = self.memory_budget or int(device_memory() * DEFAULT_SHARE)
        config = EngineConfig(
            self.max_batch,
            budget,
            self.stored,
            target_latency=self.target_latency,
            eviction=self.eviction,
            max_waiting=self.max_waiting,
            share=self.share,
            speculation=self.speculation,
        )
        draft = self._draft
        info = ModelInfo(
            loaded.name,
            loaded.chat,
            loaded.spec,
            str(getattr(getattr(loaded.model, "args", None), "model_type", "")),
            loaded.fingerprint,
            loaded.tokenizer_id,
            str(mx.default_device()),
            budget,
            loaded.eager,
            "" if loaded.draft is None or draft is None else draft.name,
        )
        return info, Engine(loaded, config, self.clock, tracer)

    def _with_draft(self, loaded: "LoadedModel") -> "LoadedModel":
        """The model with its draft model, where one was asked for and can be used."""
        from kvactors.core.model.draft import with_draft

        draft = self._draft
        if draft is None or self.options.reproducible or not loaded.spec.flat:
            return loaded
        try:
            return with_draft(loaded, draft.source, self.options)
        except InvalidConfig as error:
            if not self.swapped:
                raise
            logger.warning("%s goes on without a draft model: %s", loaded.name, error)
            return loaded

    @property
    def _draft(self) -> DraftModel | None:
        """The draft model that was asked for."""
        return None if self.speculation is None else self.speculation.draft


def device_memory() -> int:
    """Bytes the device has left: what CUDA says is free, of Metal's working set, or of what the
    machine has."""
    import mlx.core as mx

    info = mx.device_info()
    if "free_memory" in info:
        return int(info["free_memory"])
    total = info.get("max_recommended_working_set_size") or info.get("memory_size")
    if not total:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(total) - int(mx.get_active_memory())
