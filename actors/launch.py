"""Launch: everything the GPU thread needs to load a model and start its engine."""

import functools
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvactors.core import blas
from kvactors.core.errors import InvalidConfig
from kvactors.core.eviction import EvictionPolicy
from kvactors.core.options import ModelOptions
from kvactors.core.spec import ModelCacheSpec
from kvactors.core.template import ChatFormat
from kvactors.core.trace import Tracer

if TYPE_CHECKING:
    from kvactors.core.engine import Engine

__all__ = ["Launch", "ModelInfo", "callable_name", "parse_budget", "parse_bytes"]

# Share of the memory that is free after loading; the rest is for weights' work space,
# the operating system and other programs.
DEFAULT_SHARE = 0.5
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What other threads may know of a loaded model: no array, no module."""

    name: str
    """As it was asked for."""
    chat: ChatFormat
    """Tokenizer and template."""
    spec: ModelCacheSpec
    """Layers, vocabulary, context."""
    model_type: str
    """Its architecture, as its configuration names it."""
    fingerprint: str
    """Identity of its KV."""
    tokenizer_id: str
    """Identity of its tokenizer."""
    device: str
    """Where it runs."""
    memory_budget: int
    """Bytes of KV it may hold."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Loads, probes and starts when called, on the GPU thread. Imports MLX only then."""

    source: str | Path | Callable[[], Any]
    options: ModelOptions
    max_batch: int
    memory_budget: int | None
    target_latency: float
    stored: bool
    eviction: EvictionPolicy | None = None
    max_waiting: int = 100_000
    clock: Callable[[], float] = time.perf_counter

    def __post_init__(self) -> None:
        if callable(self.source) and self.options.name is None and self.stored:
            raise InvalidConfig(
                "a callable model needs a name of its own to be stored under: pass a named "
                "function, or model_name="
            )

    def check(self) -> None:
        """Raise ModelNotFound for what can be seen to be missing without loading anything."""
        from kvactors.core.model import locate

        if not callable(self.source):
            locate(self.source)

    def __call__(self, tracer: Tracer) -> "tuple[ModelInfo, Engine]":
        """The loaded model's description and its engine, which tells `tracer` of its work.
        Raises ModelError, InvalidConfig."""
        blas.preload()
        import mlx.core as mx
        from mlx_lm.utils import maybe_set_recommended_wired_limit

        from kvactors.core.engine import Engine, EngineConfig
        from kvactors.core.model import load_model
        from kvactors.core.products import probe_products

        loaded = probe_products(load_model(self.source, self.options))
        maybe_set_recommended_wired_limit()
        mx.clear_cache()
        budget = self.memory_budget or int(_device_memory() * DEFAULT_SHARE)
        config = EngineConfig(
            self.max_batch,
            budget,
            self.stored,
            target_latency=self.target_latency,
            eviction=self.eviction,
            max_waiting=self.max_waiting,
        )
        info = ModelInfo(
            loaded.name,
            loaded.chat,
            loaded.spec,
            str(getattr(getattr(loaded.model, "args", None), "model_type", "")),
            loaded.fingerprint,
            loaded.tokenizer_id,
            str(mx.default_device()),
            budget,
        )
        return info, Engine(loaded, config, self.clock, tracer)


def callable_name(source: object) -> str | None:
    """The name of a callable model; None for paths and for callables without one."""
    if isinstance(source, functools.partial):
        return callable_name(source.func)
    if not callable(source):
        return None
    name = getattr(source, "name", None) or getattr(source, "__name__", None)
    return name if isinstance(name, str) and name != "<lambda>" else None


def parse_budget(budget: int | str | None) -> int | None:
    """Bytes of "8GB", 8_000_000_000 or None. Raises InvalidConfig."""
    return None if budget is None else parse_bytes("memory_budget", budget)


def parse_bytes(name: str, value: int | str) -> int:
    """Bytes of "8GB" or 8_000_000_000. Raises InvalidConfig."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?B?)\s*", value.upper())
        unit = None if match is None else _UNITS.get(match[2])
        if match is None or unit is None or match[1].count(".") > 1 or match[1] == ".":
            raise InvalidConfig(f'{name} is bytes or text such as "8GB", not {value!r}')
        value = int(float(match[1]) * unit)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidConfig(f"{name} is a whole number of bytes above 0, not {value!r}")
    return value


def _device_memory() -> int:
    """Bytes the device has left: the GPU's working set, or what the machine reports free."""
    import os

    import mlx.core as mx

    info = mx.device_info()
    total = info.get("max_recommended_working_set_size") or info.get("memory_size")
    if not total:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(total) - int(mx.get_active_memory())
