"""Which model families run, and how exactly: a tiny grid model of each, batched and restarted.

    python -m kvactors.bench.families [--all] [--quick] [--write FILE] [NAMES]

Every family is built from mlx-lm's own classes in true geometry, snapped to a grid on which
sums are exact, and asked alone, in a staggered batch, and again in a new process from what
the store holds. `--all` walks every module of mlx_lm.models; else one family of every kind.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvactors.bench.families.table import Row, render
from kvactors.bench.report import print_json
from kvactors.core import blas
from kvactors.core.testing.family_own import NOTES

if TYPE_CHECKING:
    from kvactors.core.cache.spec import LayerSpec
    from kvactors.core.engine.engine import Engine
    from kvactors.core.model.load import LoadedModel
    from kvactors.core.schedule.events import Finished

__all__ = ["SMOKE", "examine", "main"]

SMOKE = (
    "qwen3",
    "deepseek_v2",
    "gemma3_text",
    "gpt_oss",
    "gemma2",
    "deepseek_v3",
    "gemma3n",
    "qwen3_moe",
    "gpt_bigcode",
    "mamba2",
    "rwkv7",
    "qwen3_next",
    "lfm2",
    "falcon_h1",
    "recurrent_gemma",
)
"""One family for each kind of layer."""

QUICK = SMOKE[:2]
LENGTHS = (5, 40, 1, 2, 13, 270)
TOKENS = 8
# Of the logits' deviation; logits of tokens that a model rules out are less than any other.
TOLERANCE, RULED_OUT = 1e-3, 1e3


def main() -> None:
    """Examine the families asked for; print the table."""
    parser = argparse.ArgumentParser(description="Which model families run, and how exactly.")
    parser.add_argument("names", nargs="*", help="families (default: one of every kind)")
    parser.add_argument("--all", action="store_true", help="every module of mlx_lm.models")
    parser.add_argument("--quick", action="store_true", help="only a few families")
    parser.add_argument("--write", type=Path, help="write the table to this file too")
    parser.add_argument("--restart", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    blas.preload()
    if options.restart:
        for name in options.names:
            print(name, "yes" if answers_again(options.restart, name) else "NO", flush=True)
        return
    names = options.names or (QUICK if options.quick else SMOKE)
    if options.all:
        from kvactors.core.testing.families import all_families

        names = all_families()
    begin = time.perf_counter()
    rows = examine_all(names)
    table = render(rows)
    print(table)
    if options.write:
        options.write.write_text(table)
    print_json(
        "families",
        seconds=round(time.perf_counter() - begin, 1),
        exact=sum(row.batched == row.restarted == "exact" for row in rows),
        rows=[asdict(row) for row in rows],
    )


def examine_all(names: Any) -> list[Row]:
    """Every family in this process, then all restarts in one new one."""
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for name in names:
            rows.append(examine(name, Path(folder)))
            print(f"{name}: {rows[-1].batched or rows[-1].reason}", file=sys.stderr, flush=True)
        asked = [row.family for row in rows if row.batched]
        command = [
            sys.executable,
            "-m",
            "kvactors.bench.families",
            "--restart",
            folder,
            *asked,
        ]
        told = subprocess.run(command, capture_output=True, text=True, check=False)
        again = dict(line.split() for line in told.stdout.splitlines())
    for row in rows:
        if row.batched:
            row.restarted = {"yes": "exact", "NO": "NO"}.get(again.get(row.family, ""), "crashed")
    return rows


def examine(family: str, folder: Path) -> Row:
    """One family, alone and batched; what a restart needs is left in `folder`."""
    from kvactors.core.errors import KvactorsError
    from kvactors.core.testing.families import NotBuilt

    row = Row(family)
    try:
        loaded = load(family)
        spec = loaded.spec
        row.layers = describe(spec.layers)
        row.rows = "batched" if spec.batched else "one by one"
        row.kept_bytes, row.float_bytes = spec.bytes_per_token, spec.float_bytes_per_token
        row.fixed_bytes = spec.bytes_of(1 << 20) - (1 << 20) * spec.bytes_per_token
        row.logits = "same" if as_mlx_lm(family) else "NO"
        row.batched = "exact" if batch_equals_alone(loaded) else "NO"
        leave_for_restart(loaded, family, folder)
    except (NotBuilt, KvactorsError) as error:
        row.reason = f"{error}".partition("\n")[0]
    row.reason = row.reason or NOTES.get(family, "")
    return row


def load(family: str) -> "LoadedModel":
    """A grid model of a family."""
    from kvactors.core.model.load import load_model
    from kvactors.core.model.options import ModelOptions
    from kvactors.core.testing.families import build
    from kvactors.core.testing.models import PlainTokenizer, snap_to_grid

    model = snap_to_grid(build(family))
    return load_model(lambda: (model, PlainTokenizer()), ModelOptions(attention="packed"))


def as_mlx_lm(family: str) -> bool:
    """Whether logits are mlx-lm's far behind what the load-time probe sees: after a long prompt,
    in two chunks and in steps, with everything in float."""
    import mlx.core as mx
    from mlx_lm.models.cache import make_prompt_cache

    from kvactors.core.arena.arena import Arena
    from kvactors.core.model.load import load_model
    from kvactors.core.model.options import ModelOptions
    from kvactors.core.testing.families import build
    from kvactors.core.testing.models import PlainTokenizer

    model = build(family)
    loaded = load_model(lambda: (model, PlainTokenizer()), ModelOptions(kv_bits=None))
    arena, caches = Arena(loaded.spec, loaded.policy), make_prompt_cache(model)
    arena.add_row(0, max(LENGTHS))
    long = prompt(LENGTHS.index(max(LENGTHS)))
    for chunk in (long[:200], long[200:], [7], [9]):
        tokens = mx.array([chunk])
        both = [arena.forward(model, tokens), model(tokens, cache=caches)]
        ours, theirs = (mx.maximum(logits[0, -1], -RULED_OUT) for logits in both)
        arena.evaluate()
        if not mx.abs(ours - theirs).max() <= TOLERANCE * mx.sqrt(mx.var(theirs)):
            return False
    return True


def describe(layers: "tuple[LayerSpec, ...]") -> str:
    """Kinds of layers, in order: "3 sliding 12 + 1 full"."""
    names = (
        layer.kind
        + (f" {layer.window}" if layer.window else "")
        + (" plain" if layer.plain and layer.kind != "latent" else "")
        for layer in layers
    )
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return " + ".join(f"{count} {name}" for name, count in counts.items())


def batch_equals_alone(loaded: "LoadedModel") -> bool:
    """Whether a staggered batch decodes what each prompt decodes alone."""
    from kvactors.core.schedule.sampling import Sampling
    from kvactors.core.testing.engines import make_request, run_engine

    def request(index: int) -> Any:
        sampling = Sampling(max_tokens=TOKENS + index)
        return make_request(f"{index}", [], prompt(index), sampling)

    count = len(LENGTHS)
    together = run_engine(engine(loaded), [(2 * i, request(i)) for i in range(count)])
    return all(
        run_engine(engine(loaded), [(0, request(i))])[f"{i}"].request.generated
        == together[f"{i}"].request.generated
        for i in range(count)
    )


def prompt(index: int) -> list[int]:
    """Token ids, the same in every process."""
    return [1 + (7 * place * place + 3 * index + place) % 120 for place in range(LENGTHS[index])]


def engine(loaded: "LoadedModel") -> "Engine":
    """An engine with room for everything, over a store."""
    from kvactors.core.engine.engine import Engine, EngineConfig

    return Engine(loaded, EngineConfig(4, 1 << 30, True))


def ask(running: "Engine", known: list[int], new: list[int]) -> "Finished":
    """One turn of the agent "a" in the engine `running`: the tokens `new` behind those `known`."""
    from kvactors.core.schedule.sampling import Sampling
    from kvactors.core.testing.engines import make_request, run_engine

    request = make_request("a", known, new, Sampling(max_tokens=TOKENS))
    return run_engine(running, [(0, request)])["a"]


def leave_for_restart(loaded: "LoadedModel", family: str, folder: Path) -> None:
    """Store a first turn of `loaded` in `folder`, named after the `family`, and note what a second
    one answers."""
    import msgpack  # type: ignore[import-untyped]

    from kvactors.persistence.commit.save import Save
    from kvactors.persistence.store.store import Store

    running = engine(loaded)
    first = ask(running, [], prompt(4))
    second = ask(running, first.request.tokens, prompt(1))
    note = {"known": first.request.tokens, "answer": second.request.generated}
    (folder / f"{family}.note").write_bytes(msgpack.packb(note))
    store = Store(folder / "store")
    try:
        save = Save(family, ({"version": 2},), loaded.fingerprint, first.exported)
        store.commit([save], durable=_quiet, cached=_quiet, failed=_fail)
    finally:
        store.close()


def _quiet(_save: object) -> None:
    """Success needs no word."""


def _fail(_save: object, _part: str, error: BaseException) -> None:
    raise error


def answers_again(folder: Path, family: str) -> bool:
    """In a new process: whether the second turn is answered the same, from the store's KV."""
    import msgpack

    from kvactors.core.schedule.sampling import Sampling
    from kvactors.core.testing.engines import make_request, run_engine
    from kvactors.persistence.store.store import Store

    loaded = load(family)
    note = msgpack.unpackb((folder / f"{family}.note").read_bytes())
    store = Store(folder / "store")
    try:
        stored = store.read_kv(family, loaded.fingerprint)
    finally:
        store.close()
    running = engine(loaded)
    request = make_request("a", note["known"], prompt(1), Sampling(max_tokens=TOKENS))
    running.submit(request)
    running.step()
    running.provide("a", stored)
    end = run_engine(running, [])["a"]
    reused = request.cache_state == "warm" and request.kept == len(note["known"]) - 1
    return reused and end.request.generated == note["answer"]


if __name__ == "__main__":
    main()
