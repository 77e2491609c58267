"""What the machine allows: rates that bound a prefill and a decode step, measured here.

`decode_bound` says how long a step must take from bytes read and products done; what is above
that is launches and Python, what is below the target is not to be had on this machine.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from typing import Any

from kvactors.bench.regime import CannotRun
from kvactors.bench.report import print_table
from kvactors.bench.setup import Setup

__all__ = ["Rates", "decode_bound", "measure_rates", "prefill_bound", "show_bounds"]

TRIES = 5
KEYS = 4096


@dataclass(frozen=True, slots=True)
class Rates:
    """In operations and bytes a second: products of floats of many rows (`matmul`), weights read
    for a product of one row (`read`), products with 4-bit codes, transposed (`scores`) and
    not (`values`)."""

    matmul: float
    read: float
    scores: float
    values: float

    def row(self) -> tuple[str, ...]:
        """Cells of a table, in units of 1e9 a second."""
        return tuple(f"{rate / 1e9:.2f}" for rate in astuple(self))


def measure_rates(setup: Setup) -> Rates:
    """Best of a few tries each; about a second on a CPU. Raises CannotRun, as all bounds do, where
    the model does not say how many heads attend, or none does."""
    import mlx.core as mx

    _, heads = _heads(setup)
    square = mx.random.normal((1024, 1024))
    vector, large = mx.random.normal((1, 4096)), mx.random.normal((4096, 4096))
    keys = mx.random.normal((1, heads, KEYS, 64))
    packed = mx.quantize(keys, group_size=64, bits=4)
    query, weights = mx.random.normal((1, heads, 2, 64)), keys.swapaxes(-1, -2)[:, :, :2]
    weights = mx.contiguous(weights)
    mx.eval(square, vector, large, packed, query, weights)
    operations = 2 * heads * 2 * KEYS * 64

    def product(left: Any, *, transposed: bool) -> Any:
        return mx.quantized_matmul(left, *packed, transposed, group_size=64, bits=4)

    return Rates(
        2 * 1024**3 / _best(lambda: square @ square),
        large.nbytes / _best(lambda: vector @ large),
        operations / _best(lambda: product(query, transposed=True)),
        operations / _best(lambda: product(weights, transposed=False)),
    )


def decode_bound(setup: Setup, rates: Rates, rows: int, keys: int) -> float:
    """Seconds that a decode step of `rows` agents with `keys` tokens each of the model of `setup`
    must take at these `rates`: weights are read once, the table of embeddings only where it gives
    logits too; all products with codes are done."""
    weights, logits = _parameters(setup)
    nbytes: int = sum(array.nbytes for array in (*weights, *logits))
    asked = _attention_operations(setup, rows * keys)
    return nbytes / rates.read + asked / rates.scores + asked / rates.values


def prefill_bound(setup: Setup, rates: Rates, tokens: int) -> float:
    """Seconds that a prefill of `tokens` by the model of `setup` must take at these `rates`:
    products of floats alone, scores above the diagonal left out, and logits of the last one."""
    weights, logits = (
        sum(array.size for array in arrays if array.ndim == 2) for arrays in _parameters(setup)
    )
    linear: int = weights * tokens + logits
    pairs = tokens * (tokens + 1) // 2
    return (2 * linear + 2 * _attention_operations(setup, pairs)) / rates.matmul


def show_bounds(setup: Setup) -> dict[str, float]:
    """Prints and returns what this machine allows, in seconds and in units a second: nothing, and
    why, for a model that none of this is known of."""
    try:
        rates = measure_rates(setup)
    except CannotRun as error:
        print(f"What this machine allows: {error}")
        return {}
    bounds = {
        "prefill of 4,096": prefill_bound(setup, rates, 4096),
        "step, 1 agent of 4,096": decode_bound(setup, rates, 1, 4096),
        "step, 16 agents of 1,000": decode_bound(setup, rates, 16, 1000),
    }
    columns = ("products GFLOP/s", "reading GB/s", "scores GFLOP/s", "sums GFLOP/s")
    print_table(
        "What this machine does (quantized_matmul at 4 bits: scores of keys, sums of values).",
        columns,
        [rates.row()],
    )
    print_table(
        "Least ms by these rates, if mlx-lm's own kernels do the work.",
        tuple(bounds),
        [[1e3 * seconds for seconds in bounds.values()]],
    )
    return {**asdict(rates), **bounds}


def _parameters(setup: Setup) -> tuple[list[Any], list[Any]]:
    """Those that each token goes through, and those that give logits: the table of embeddings, of
    which a token else needs one row, where the model has no others."""
    from mlx.nn.utils import tree_flatten

    found = dict(tree_flatten(setup.model.parameters()))
    table = {name for name in found if "embed" in name}
    head = {name for name in found if "lm_head" in name}
    logits = [found[name] for name in head or table]
    return [found[name] for name in found.keys() - table - head], logits


def _attention_operations(setup: Setup, pairs: int) -> int:
    """Of the scores, or of the weighted sums, of so many pairs of query and key, in all layers."""
    heads, _ = _heads(setup)
    return sum(2 * heads * layer.head_dim * pairs for layer in setup.loaded.spec.layers)


def _heads(setup: Setup) -> tuple[int, int]:
    """Of queries, and of keys where there are any."""
    queries = getattr(getattr(setup.model, "args", None), "num_attention_heads", 0)
    keys = max(layer.kv_heads for layer in setup.loaded.spec.layers)
    if not (queries and keys):
        raise CannotRun("not for this model: it does not say how many heads attend, or none does")
    return queries, keys


def _best(act: Callable[[], Any]) -> float:
    import mlx.core as mx

    mx.eval(act())
    times = []
    for _ in range(TRIES):
        begin = time.perf_counter()
        mx.eval(act())
        times.append(time.perf_counter() - begin)
    return min(times)
