"""`kvactors info`: what a model's memory costs, and what it runs on."""

import itertools
import sys
from collections.abc import Sequence

from rich.filesize import decimal
from rich.table import Table

from kvactors.actors.frontends.console.console import out, printable, working
from kvactors.actors.system.system import AgentSystem
from kvactors.core import blas
from kvactors.core.cache.spec import LayerSpec, ModelCacheSpec, Side
from kvactors.core.model.info import ModelInfo

__all__ = ["show_info", "step_tokens"]


def show_info(model: str) -> None:
    """Load the model and print its cache spec."""
    with working(f"Loading {printable(model)} …"):
        system = AgentSystem(model, store=False)
        system.start()
    try:
        info = system.info
    finally:
        system.stop()
    facts = Table(box=None, show_header=False, pad_edge=False)
    for name, value in _facts(info):
        facts.add_row(name, value)
    out.print(facts, soft_wrap=True)
    out.print()
    out.print(_layers(info.spec))


def _facts(info: ModelInfo) -> list[tuple[str, str]]:
    spec = info.spec
    packed, plain = spec.bytes_per_token, spec.float_bytes_per_token
    ratio = f" ({plain / packed:.1f} times less)" if packed else ""
    whole = spec.bytes_of(spec.context)
    return [
        ("model", printable(info.name)),
        ("fingerprint", info.fingerprint),
        ("device", info.device.removeprefix("Device(").rstrip(")")),
        ("BLAS", _blas(info.device)),
        ("vocabulary", f"{spec.vocab_size:,} tokens"),
        ("context", f"{spec.context:,} tokens"),
        ("rows", "in one batch" if spec.batched else "one by one"),
        ("beginnings of forks", "read where they are" if spec.trunks else "copied while they run"),
        *step_tokens(spec),
        ("decode steps", f"built anew: {info.eager}" if info.eager else "replayed"),
        ("KV per token, float", f"{plain:,} bytes"),
        ("KV per token, kept", f"{packed:,} bytes{ratio}"),
        ("windows and states", f"at most {decimal(whole - spec.context * packed)} an agent"),
        ("KV of a full context", decimal(whole)),
        ("draft model", info.draft or "none"),
        ("memory budget", decimal(info.memory_budget) + _tokens(info.memory_budget, packed)),
    ]


def _tokens(budget: int, packed: int) -> str:
    return f", {budget // packed:,} tokens" if packed else ""


def step_tokens(spec: ModelCacheSpec) -> list[tuple[str, str]]:
    """Whether rows take as many tokens each in a forward, and which layers want it so, and why."""
    if spec.flat:
        return [("tokens of a step", "as each row asks")]
    alone = "" if spec.batched else ": rows run one by one"
    found = [("tokens of a step", f"as many in each row{alone}")]
    found += [("", spec.even)] * bool(spec.even)
    reasons = dict.fromkeys((layer.kind, layer.why_even) for layer in spec.layers)
    for kind, why in reasons:
        alike = [n for n, one in enumerate(spec.layers) if (one.kind, one.why_even) == (kind, why)]
        if why:
            found.append(("", f"layers {_ranges(alike)} ({kind}): {why}"))
    return found


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers, those in a row as one: 0-2, 4."""
    groups = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = [[number for _, number in group] for _, group in groups]
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _blas(device: str) -> str:
    if "cpu" not in device:
        return "not used on this device"
    if sys.platform == "darwin":
        return "Accelerate"
    if blas.preload():
        return "OpenBLAS"
    return "reference BLAS, about 50 times slower in prefill: apt install libopenblas0-pthread"


def _layers(spec: ModelCacheSpec) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("layers", "kind", "KV heads", "head dim", "kept as", "bytes per token"):
        table.add_column(name, justify="left" if name in ("layers", "kept as") else "right")
    at = 0
    for layer, group in itertools.groupby(spec.layers):
        count = len(list(group))
        numbers = range(at, at + count)
        at += count
        table.add_row(
            _ranges(numbers),
            layer.kind,
            str(layer.kv_heads or "-"),
            _head_dim(layer),
            _kept(layer),
            f"{layer.bytes_per_token():,}",
        )
    return table


def _head_dim(layer: LayerSpec) -> str:
    keys, values = layer.sides
    return f"{keys.dim or '-'}" if keys.dim == values.dim else f"{keys.dim} / {values.dim}"


def _kept(layer: LayerSpec) -> str:
    if layer.kind == "recurrent":
        return f"state of {layer.row_bytes // 2:,} bytes in float, at the ends of turns"
    keys, values = layer.sides
    kept = _side(keys, layer.dtype)
    if values != keys:
        kept = f"keys {kept}; values {_side(values, layer.dtype)}"
    if layer.plain:
        kept += "; read as floats"
    if layer.window is None:
        return kept
    return f"{kept}; the last {layer.window:,} tokens, room for {layer.cells:,}"


def _side(side: Side, dtype: str) -> str:
    if side.bits is None:
        odd = side.dim % 32
        return f"{dtype}: neither 64 nor 32 divides the head dim" if odd else dtype
    return f"{side.bits} bits, groups of {side.group_size}, scales in {dtype}"
