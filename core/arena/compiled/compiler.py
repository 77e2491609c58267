"""StepCompiler: decode steps that are replayed.

A step of rows that stand further is the same graph on other arrays, as long as there are as many
rows, their slabs are as large and the keys that are read end at the same extent. Built by Python a
graph costs a third of a step of a small model, and the GIL. So it is traced: what a step reads and
writes goes in as arrays and comes out as arrays, and nobody else holds the old ones, so that writes
stay in place.

A trace costs as much as some steps. A step that was not taken often is run as ever, and traces are
only made while replays have paid for those before. GPU thread only.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import mlx.core as mx

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.compiled.carried import carrier
from kvactors.core.arena.compiled.unfused import replays, unfused
from kvactors.core.arena.step import EvenStep

__all__ = ["StepCompiler", "Tail"]

logger = logging.getLogger(__name__)

# Times that a step is taken before it is traced, and steps that a trace costs.
WORTH = 8
# Traces that are kept, and kinds of steps that are counted.
MOST_TRACES = 32
MOST_COUNTED = 256
# Traces that may be made before any was replayed, and how many times its cost in eager steps earns
# one more: what was wasted on short answers is not held against a long one for ever.
CREDIT = 8
EARNED = 16
# Of a step that cannot be traced.
NEVER = float("-inf")

Inputs = Sequence[Any]
"""Lists of arrays."""

Stepped = tuple[mx.array, mx.array | None]
"""Logits [rows, vocab], and what was made of them."""


class Tail(Protocol):
    """What is computed of a step's logits in the same graph, one for each `form`."""

    @property
    def form(self) -> Hashable:
        """What shapes the graph."""

    @property
    def inputs(self) -> Inputs:
        """The arrays of this step."""

    def run(self, logits: mx.array, fed: mx.array, inputs: Inputs) -> mx.array:
        """An array of `logits` [rows, vocab], the tokens that were `fed` [rows] and `inputs`."""


class StepCompiler:
    """Takes the decode steps of a `model`, of any of its arenas; all of them eagerly if it is not
    `traced`.

    At most `most` traces are kept, those used last. They hold the model's weights, and go with the
    compiler. A trace is made of a step that was taken `worth` times, and must have been paid for by
    as many replays, or EARNED times as many eager steps, but for the first `credit` ones. `made`
    counts them, `replayed` the steps that were taken by one, `eager` those without one.
    """

    def __init__(
        self,
        model: Any,
        *,
        traced: bool,
        most: int = MOST_TRACES,
        worth: float = WORTH,
        credit: float = CREDIT,
    ) -> None:
        self._model = model
        self.traced = traced
        self._most = most
        self._least, self._credit = worth, credit
        self._traces: OrderedDict[Hashable, _Trace] = OrderedDict()
        # How often a step was taken that has no trace.
        self._taken: OrderedDict[Hashable, float] = OrderedDict()
        self.made = self.replayed = self.eager = 0

    def __len__(self) -> int:
        return len(self._traces)

    def step(self, arena: Arena, tokens: mx.array, tail: Tail | None = None) -> Stepped:
        """One step of all rows of `arena`, which are fed `tokens` [rows]: lazy logits [rows,
        vocab], and what the `tail` makes of them if it was replayed. If it raises, lengths are as
        before."""
        # What was drawn has this dtype, what was read of a request another one.
        tokens = tokens.astype(mx.uint32)
        if not self.traced:
            return arena.forward(self._model, tokens[:, None])[:, -1], None
        geometry = EvenStep(arena.table, 1, floats=arena.floats, whole=True)
        arena.begin(geometry)
        stepped = self._by_trace(_key(arena, geometry, tail), arena, tokens, tail)
        if stepped is None:
            logits = arena.step(self._model, tokens[:, None], geometry, begun=True)
            stepped = logits[:, -1], None
        arena.table.advance(1)
        return stepped

    def _by_trace(
        self, key: Hashable, arena: Arena, tokens: mx.array, tail: Tail | None
    ) -> Stepped | None:
        """The step that was begun, if there is a trace of it or it is worth one. What fails here
        has changed nothing: an eager step shows whether it was the trace's fault."""
        trace = self._traces.get(key)
        try:
            if trace is None:
                if key is None or not self._worth(key):
                    return None
                self.made += 1
                trace = _Trace(self._model)
                stepped, outcomes = trace.make(arena, tokens, tail)
                del self._taken[key]
                self._traces[key] = trace
            else:
                stepped, outcomes = trace.replay(arena, tokens, tail)
                self.replayed += 1
        except Exception as error:
            logger.debug("a step cannot be replayed: %s: %s", type(error).__name__, error)
            self._traces.pop(key, None)
            self._taken[key] = NEVER
            return None
        self._traces.move_to_end(key)
        if len(self._traces) > self._most:
            self._traces.popitem(last=False)
        # What fails here has changed something: nobody takes the step once more.
        for layer, outcome in zip(arena.layers, outcomes, strict=True):
            carrier(layer).accept(outcome)
        return stepped

    def _worth(self, key: Hashable) -> bool:
        """Whether a step that is taken now, without a trace, is worth one."""
        self._taken[key] = taken = self._taken.pop(key, 0) + 1
        if len(self._taken) > MOST_COUNTED:
            self._taken.popitem(last=False)
        self.eager += 1
        earned = self.replayed + self.eager / EARNED
        paid = (self.made - self._credit) * self._least <= earned
        return taken >= self._least and paid and replays()


class _Trace:
    """One kind of step of a `model`."""

    def __init__(self, model: Any) -> None:
        # Of the step that is traced. A replay knows arrays alone, and one that asks fails: it would
        # be traced once more.
        self._traced = traced = list[Any]()

        def step(
            tokens: mx.array, offset: mx.array, carried: list[Any], inputs: Inputs
        ) -> tuple[mx.array, mx.array | None, list[Any]]:
            arena, tail = traced
            with _standing_in(arena, offset, carried) as geometry:
                logits = arena.step(model, tokens[:, None], geometry, begun=True)[:, -1]
                drawn = None if tail is None else tail.run(logits, tokens, inputs)
                return logits, drawn, [carrier(layer).outcome for layer in arena.layers]

        self._step: Callable[..., Any] = mx.compile(step)

    def make(self, arena: Arena, tokens: mx.array, tail: Tail | None) -> tuple[Stepped, list[Any]]:
        """`replay`, of what is traced now."""
        self._traced[:] = arena, tail
        try:
            with unfused():
                return self.replay(arena, tokens, tail)
        finally:
            self._traced.clear()

    def replay(
        self, arena: Arena, tokens: mx.array, tail: Tail | None
    ) -> tuple[Stepped, list[Any]]:
        """The step that `arena` has begun, of `tokens` [rows], and its `tail`; and each layer's
        outcome, which is still to be accepted."""
        offset = mx.array(arena.table.lengths)
        carried = [carrier(layer).arrays for layer in arena.layers]
        inputs = () if tail is None else tail.inputs
        logits, drawn, outcomes = self._step(tokens, offset, carried, inputs)
        return (logits, drawn), outcomes


@contextmanager
def _standing_in(arena: Arena, offset: mx.array, carried: list[Any]) -> Iterator[EvenStep]:
    """Within, the arena's rows are those of the arrays `carried`, and take a step at the positions
    `offset` [rows]; then all is as before, whatever happens."""
    geometry = EvenStep(arena.table, 1, floats=arena.floats, whole=True, offset=offset)
    with ExitStack() as stack:
        for layer, arrays in zip(arena.layers, carried, strict=True):
            stack.enter_context(carrier(layer).standing_in(arrays))
            stack.callback(setattr, layer, "geometry", layer.geometry)
            layer.geometry = geometry
        yield geometry


def _key(arena: Arena, geometry: EvenStep, tail: Tail | None) -> Hashable:
    """What shapes the graph of a step; None if it cannot be traced: states, what layers learn of
    a model, and what is kept of a common beginning, are made by a first step."""
    forms = [carrier(arena.layers[group[0]]).form for group in arena.spec.groups()]
    if None in forms or not all(layer.known for layer in arena.layers):
        return None
    reads = geometry.counts, geometry.extents, geometry.shared
    form = None if tail is None else tail.form
    return tuple(map(tuple, reads)), tuple(forms), form
