"""`kvactors check`: every check in its order, within its time."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from kvactors.bench.check.finding import Answer, Finding, look
from kvactors.bench.check.kinds import KINDS, Kind

__all__ = ["SECONDS", "run_checks"]

SECONDS = 90.0
"""What all checks may take together; nothing is begun that is not likely to end by then."""

# A line of figures may take so many times what the longest before it took.
LONGER = 3


def run_checks(kinds: Sequence[Kind] = KINDS, *, figures: bool = True) -> Iterator[Finding]:
    """What is found of each of the `kinds`, of the device's products and, with `figures`, of its
    speed; one after the other. What is not begun in time is skipped, and says so. Loads MLX."""
    from kvactors.bench.check.device import products
    from kvactors.core.quant.device import on_cpu

    end, exact = time.perf_counter() + SECONDS, on_cpu()
    yield look("quantized products", products)
    for kind in kinds:
        yield from _examine(kind, end, exact=exact)
    if figures:
        yield from _figures(end)


def _timely(name: str, check: Callable[[], Answer], end: float, seconds: float = 0.0) -> Finding:
    """Look, if that is likely to take so many `seconds` and those are left until `end`."""
    left = end - time.perf_counter()
    if left < seconds:
        return look(name, lambda: Answer("skipped", f"{left:.0f} s were left of {SECONDS:.0f}"))
    return look(name, check)


def _examine(kind: Kind, end: float, *, exact: bool) -> Iterator[Finding]:
    """The conversations of a kind, what is the same in each company, and the arithmetic."""
    from kvactors.bench.check import exactness
    from kvactors.bench.check.conversations import Heard, converse
    from kvactors.bench.check.device import arithmetic

    judge, heard = exactness.Judge(kind, exact), list[Heard]()

    def batched() -> Answer:
        with TemporaryDirectory(prefix="kvactors-check-") as folder:
            heard.append(converse(kind.build, Path(folder), attention="packed"))
        return exactness.together(heard[0], judge)

    yield _timely(f"{kind.name}: batched", batched, end)
    for check in (exactness.restarted, exactness.forked) if heard else ():
        yield look(f"{kind.name}: {check.__name__}", lambda c=check: c(heard[0], judge))
    yield _timely(f"{kind.name}: arithmetic", lambda: arithmetic(kind, exact=exact), end)


def _figures(end: float) -> Iterator[Finding]:
    from kvactors.bench.check.figures import SMALL, figure, lines
    from kvactors.bench.setup import Setup

    setup, longest = Setup(SMALL), 0.0
    for regime in lines():
        line = _timely(regime.name, lambda r=regime: figure(r, setup), end, LONGER * longest)
        longest = max(longest, line.seconds)
        yield line
