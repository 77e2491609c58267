"""Two users of 4K each, the second while the first is read: who waits how long.

    python -m kvactors.bench.experiments.staggered [--quick] [--model M] [--plot out.png]

Regime: B asks when a third of A's prefill is over; each is answered with 64 tokens [paper, 4.4].
Interleaved: what kvactors does. One after the other: kvactors too, B begins when A is done. mlx-lm:
in a process of its own, one after the other, prefilled in its best chunks; B comes when B came
there. Seconds count from each one's own arrival. Medians by the sum of both.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from kvactors.actors import Reply, Sampling
from kvactors.bench.experiments.experiment import Row, begin, figure
from kvactors.bench.experiments.uncached import Turns, uncached
from kvactors.bench.peer_process import in_its_own_process
from kvactors.bench.setup import Setup, answer

__all__ = ["Served", "main", "row_of"]

CONTEXT, DECODED = 4096, 64


class Served(NamedTuple):
    """When, from A's arrival: B's arrival, and each one's first and last token."""

    arrival_b: float
    first_a: float
    end_a: float
    first_b: float
    end_b: float


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table and a JSON line, draw if asked to."""
    run = begin("staggered", __doc__, arguments)
    setup, scale = run.setup, run.setup.scale
    prompts = [setup.prompt(scale.tokens(CONTEXT), seed) for seed in (1, 2)]
    decoded = min(DECODED, 2 * scale.decoded)
    found: dict[str, list[Served]] = {"interleaved": [], "one after the other": [], "mlx-lm": []}
    theirs_alone = in_its_own_process(setup.source, uncached, prompts[0])
    with _Users(setup, prompts, decoded).ready() as users, theirs_alone as theirs:
        for _ in range(scale.runs):
            found["interleaved"].append(users.interleaved())
            arrival = found["interleaved"][-1].arrival_b
            found["one after the other"].append(users.in_turn(arrival))
            found["mlx-lm"].append(_theirs(theirs, prompts, decoded, arrival))
    middle = {how: _middle(served) for how, served in found.items()}
    rows = [row_of(how, served) for how, served in middle.items()]
    run.show(f"A and B, {len(prompts[0])} tokens each, answers of {decoded}.", rows)
    if run.plot is not None:
        figure(run.plot, lambda axes: _draw(axes, middle))
    run.end(rows, tokens=len(prompts[0]), decoded=decoded)


class _Users:
    """A and B, and when a third of A's prefill is over."""

    def __init__(self, setup: Setup, prompts: Sequence[list[int]], decoded: int) -> None:
        self._prompts, self._sampling = prompts, Sampling(max_tokens=decoded)
        self._system = setup.system(progress=self._progress)
        self._third = threading.Event()

    @contextmanager
    def ready(self) -> Iterator["_Users"]:
        with self._system as system:
            answer(system.spawn("first"), self._prompts[0][:64])
            yield self

    def _progress(self, agent_id: str, done: int, total: int) -> None:
        if agent_id == "A" and 3 * done >= total:
            self._third.set()

    def interleaved(self) -> Served:
        self._third.clear()
        begin = time.perf_counter()
        first = self._ask("A")
        self._third.wait()
        arrival = time.perf_counter() - begin
        replies = [future.get() for future in (first, self._ask("B"))]
        return self._served(arrival, replies, arrival)

    def in_turn(self, arrival: float) -> Served:
        """B came at `arrival`, and its turn begins when A's has ended."""
        replies = [self._ask(name).get() for name in "AB"]
        return self._served(arrival, replies, max(arrival, replies[0].timing.total))

    def _ask(self, name: str) -> Any:
        prompt = self._prompts["AB".index(name)]
        return self._system.spawn(name).ask(prompt, sampling=self._sampling)

    def _served(self, arrival: float, replies: Sequence[Reply], begun: float) -> Served:
        for name in "AB":
            self._system.forget(name)
        a, b = (reply.timing for reply in replies)
        return Served(arrival, a.first_token, a.total, begun + b.first_token, begun + b.total)


def _theirs(turn: Turns, prompts: Sequence[list[int]], decoded: int, arrival: float) -> Served:
    a, b = (turn(prompt, decoded) for prompt in prompts)
    begun = max(arrival, a.total_s)
    return Served(arrival, a.first_s, a.total_s, begun + b.first_s, begun + b.total_s)


def _middle(served: Sequence[Served]) -> Served:
    """The run whose sum of waits is the median."""
    return sorted(served, key=lambda each: each.first_a + each.first_b)[len(served) // 2]


def row_of(how: str, served: Served) -> Row:
    """A line of the table."""
    arrival, first_a, end_a, first_b, end_b = served
    return {
        "how": how,
        "B_arrives_s": arrival,
        "A_first_token_s": first_a,
        "B_first_token_s": first_b - arrival,
        "both_s": first_a + first_b - arrival,
        "A_done_s": end_a,
        "B_done_s": end_b - arrival,
        "all_done_s": max(end_a, end_b),
    }


def _draw(axes: Any, found: dict[str, Served]) -> None:
    """A bar a user: until the first token, and until the last."""
    for place, served in enumerate(found.values()):
        users = (
            ("A", 0.0, served.first_a, served.end_a),
            ("B", served.arrival_b, served.first_b, served.end_b),
        )
        for up, (name, came, first, end) in enumerate(users):
            y = place + 0.35 * up
            axes.barh(y, first - came, 0.3, came, color="#8aa9c4")
            axes.barh(y, end - first, 0.3, first, color="#d1495b")
            axes.text(came, y, f" {name}", va="center")
    axes.set(yticks=[n + 0.17 for n in range(len(found))], yticklabels=list(found))
    axes.set(xlabel="s; blue: until the first token, red: until the last")
    axes.invert_yaxis()


if __name__ == "__main__":
    main()
