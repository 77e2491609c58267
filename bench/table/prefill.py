"""Regimes of prefill, and of a memory that is cold: seconds to the first token."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from kvactors.bench import peers
from kvactors.bench.peer_process import in_its_own_process
from kvactors.bench.regime import FLOAT_THERE, NOTHING_DECODED, Regime, Side, Sides
from kvactors.bench.setup import Setup, answer
from kvactors.bench.table.bounds import measure_rates, prefill_bound

__all__ = ["REGIMES", "first_token"]


def first_token(system: Any, prompt: list[int]) -> Side:
    """Time to the first token of an agent that was never here; it is forgotten again."""
    reply = answer(system.spawn("reader"), prompt)
    assert reply.cache == "cold"
    system.forget("reader")
    return Side(reply.timing.first_token, reply.token_ids)


@contextmanager
def _against(setup: Setup, *, quantize: bool) -> Iterator[Sides]:
    prompt = setup.prompt(setup.scale.tokens(4096))
    make = partial(peers.prefill, quantize=quantize)
    with setup.system() as system, in_its_own_process(setup.source, make, prompt) as theirs:
        first_token(system, prompt[:64])
        yield lambda: first_token(system, prompt), lambda: Side(*theirs())


def against_float(setup: Setup) -> AbstractContextManager[Sides]:
    """Time to the first token of a prompt of 4,096 tokens through AgentSystem at 4 bits, against
    mlx-lm's model over its float cache, in the chunks that it is fastest with here (512, 1,024 or
    2,048)."""
    return _against(setup, quantize=False)


def against_quantized(setup: Setup) -> AbstractContextManager[Sides]:
    """The same, where mlx-lm then quantizes its float cache to 4 bits: it prefills up to 5,000
    tokens in float by default, whatever is kept in the end."""
    return _against(setup, quantize=True)


@contextmanager
def against_bound(setup: Setup) -> Iterator[Sides]:
    """The same, against what its products of floats must take at the rate of a large product here,
    measured beside each."""
    tokens = setup.scale.tokens(4096)
    prompt = setup.prompt(tokens)
    with setup.system() as system:
        first_token(system, prompt[:64])
        yield (
            lambda: first_token(system, prompt),
            lambda: Side(prefill_bound(setup, measure_rates(setup), tokens)),
        )


REGIMES = (
    Regime("prefill-4k", "mlx-lm, float cache", 0.45, against_float, differ=FLOAT_THERE),
    Regime(
        "prefill-4k-q4",
        "mlx-lm, float, then quantized",
        0.45,
        against_quantized,
        differ=FLOAT_THERE,
    ),
    Regime("prefill-4k-bound", "its products alone", 1.8, against_bound, differ=NOTHING_DECODED),
)
