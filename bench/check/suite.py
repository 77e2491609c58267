"""`kvactors check`: every check in its order, within its time."""

import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from kvactors.bench.check import exactness
from kvactors.bench.check.conversations import Heard, converse
from kvactors.bench.check.device import advise, arithmetic, products
from kvactors.bench.check.figures import LINES, SMALL, figure, line
from kvactors.bench.check.finding import Answer, Finding, look
from kvactors.bench.check.kinds import KINDS, Kind
from kvactors.bench.regime import matching
from kvactors.bench.setup import Setup
from kvactors.core.quant.device import on_cpu

__all__ = ["SECONDS", "run_checks"]

SECONDS = 90.0
"""What all checks may take together; nothing is begun that is not likely to end by then."""

PRODUCTS = "quantized products"
# A line of figures may take so many times what the longest before it took.
LONGER = 2


def run_checks(only: Sequence[str] = ()) -> Iterator[Finding]:
    """What is found of the device's products, of each kind of layer and of the speed, one after the
    other; where names are given, of what matches one of `only` (regular expressions). What is not
    begun in time is skipped, and says so. Raises InvalidConfig for one that matches no name."""
    names = [PRODUCTS, *(kind.name for kind in KINDS), *LINES]
    chosen = set(matching(names, only, "check"))
    return _run(chosen, time.perf_counter() + SECONDS)


def _run(chosen: set[str], end: float) -> Iterator[Finding]:
    advise()
    if PRODUCTS in chosen:
        yield look(PRODUCTS, products)
    for kind in KINDS:
        if kind.name in chosen and time.perf_counter() > end:
            yield look(kind.name, _skipped)
        elif kind.name in chosen:
            yield from _examine(kind)
    setup, longest = Setup(SMALL), 0.0
    for name in (name for name in LINES if name in chosen):
        late = end - time.perf_counter() < LONGER * longest
        check = _skipped if late else partial(figure, line(name), setup)
        found = look(name, check, raising="unmeasured")
        longest = max(longest, found.seconds)
        yield found


def _skipped() -> Answer:
    return Answer("skipped", f"too little was left of {SECONDS:.0f} s")


def _examine(kind: Kind) -> Iterator[Finding]:
    """The conversations of a kind, what is the same in each company, and the arithmetic."""
    judge, heard = exactness.Judge(kind, exact=kind.grid and on_cpu()), list[Heard]()

    def spoken() -> Answer:
        with TemporaryDirectory(prefix="kvactors-check-") as folder:
            heard.append(converse(kind.build, Path(folder), **kind.options))
        return exactness.alone(heard[0], judge)

    yield look(f"{kind.name}: alone", spoken)
    for check in (exactness.batched, exactness.restarted, exactness.forked) if heard else ():
        yield look(f"{kind.name}: {check.__name__}", partial(check, heard[0], judge))
    if kind.grid:
        yield look(f"{kind.name}: arithmetic", partial(arithmetic, kind))
