"""Rows on two sides that live through the same: one whose decode steps are replayed as soon as they
can be, and one whose steps never are."""

from collections.abc import Sequence
from random import Random

import mlx.core as mx
import mlx.nn as nn
from makers import prompts_of

from kvactors.core.arena.compiled.compiler import StepCompiler
from kvactors.core.arena.wire import to_raw
from kvactors.core.cache.slabs import NO_TRUNK, Trunk
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.drawing import Draws, Place
from kvactors.core.schedule.request import Request
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request
from kvactors.core.testing.models import PlainTokenizer

__all__ = ["SAMPLINGS", "Rows", "Twins", "load", "rows_of", "turns_of"]

SAMPLINGS = (
    Sampling(),
    Sampling(temperature=0.8, top_p=0.9),
    Sampling(repetition_penalty=1.3),
    Sampling(temperature=1.1, top_k=9, min_p=0.01, repetition_penalty=1.1),
)
# Where the extents and the capacity of a slab end, and around the window of the families.
_LENGTHS = (1, 7, 20, 61, 64, 125, 190, 250, 255)


class Rows:
    """An arena and the turns in it; steps are traced that were taken `worth` times before."""

    def __init__(self, loaded: LoadedModel, worth: float, *, floats: bool) -> None:
        self.loaded = loaded
        self.arena = new_arena(loaded)
        self.arena.floats = floats
        self.steps = StepCompiler(loaded.model, traced=True, worth=worth, credit=999)
        self.names: list[int] = []

    def join(self, name: int, prompt: Sequence[int]) -> None:
        alone = new_arena(self.loaded)
        alone.add_row(0, len(prompt))
        alone.forward(self.loaded.model, mx.array([prompt]))
        alone.evaluate()
        self.names.insert(self.arena.take(alone, 0), name)

    def fork(self, name: int, trunk: Trunk, prompt: Sequence[int], *, reads: bool) -> None:
        """A row that begins with a `trunk`, which it `reads` where it is or has a copy of."""
        alone = new_arena(self.loaded)
        end = trunk.end + len(prompt)
        alone.add_row(trunk.end, end, trunk=trunk if reads else NO_TRUNK)
        for piece in trunk.pieces:
            alone.load(0, piece)
        alone.forward(self.loaded.model, mx.array([prompt]))
        alone.evaluate()
        self.names.insert(self.arena.take(alone, 0), name)

    def leave(self, name: int) -> None:
        row = self.names.index(name)
        moved = self.arena.leave(row)
        self.names[row] = self.names[moved]
        del self.names[moved]

    def cut(self, name: int, tokens: int) -> None:
        row = self.names.index(name)
        self.arena.cut(row, self.arena.table.lengths[row] - tokens)

    def step(self, turns: dict[int, Request], *, ahead: bool) -> tuple[mx.array, mx.array]:
        """A step of every row: what was drawn of each, and its logits."""
        requests = [turns[name] for name in self.names]
        fed = mx.array([request.tokens[-1] for request in requests])
        draws = Draws([Place(request, ahead=ahead) for request in requests])
        logits, drawn = self.steps.step(self.arena, fed, draws)
        if drawn is None:
            drawn = draws.run(logits, fed, draws.inputs)
        mx.eval(logits, drawn)
        return drawn, logits

    def peak(self, turns: dict[int, Request]) -> int:
        """Bytes that a step takes at most above what is held before it."""
        mx.synchronize()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        self.step(turns, ahead=False)
        mx.synchronize()
        return int(mx.get_peak_memory() - before)

    def verify(self, tokens: Sequence[int]) -> mx.array:
        """A forward in which the first row takes all of these tokens, the others the first one."""
        counts = [len(tokens)] + [1] * (len(self.names) - 1)
        fed = mx.array([*tokens, *[tokens[0]] * (len(counts) - 1)])
        logits = self.arena.forward_flat(self.loaded.model, fed, counts)
        mx.eval(logits)
        for row, count in enumerate(counts):
            self.arena.cut(row, self.arena.table.lengths[row] - count)
        return logits

    def held(self) -> list[object]:
        """Every byte of every row."""
        lengths = self.arena.table.lengths
        pieces = [self.arena.export(row, 0, length) for row, length in enumerate(lengths)]
        return [(tuple(what), bytes(data)) for piece in pieces for *what, data in to_raw(piece)]


class Twins:
    """Both sides, and a life for them that `seed` draws. What they give is compared to the bit.
    Most rows begin with one of `trunks`, if there are any."""

    def __init__(
        self, loaded: LoadedModel, seed: str, *, floats: bool, trunks: Sequence[Trunk] = ()
    ) -> None:
        self.replayed = Rows(loaded, 1, floats=floats)
        self.eager = Rows(loaded, float("inf"), floats=floats)
        self.turns: dict[int, Request] = {}
        self._rng = Random(seed)
        self._next = 0
        self._flat = loaded.spec.flat
        self._trunks = tuple(trunks)

    def live(self, moments: int) -> None:
        """So many joins, leaves, cuts and verifications, with steps in between."""
        self._join()
        for _ in range(moments):
            self._rng.choice((self._join, self._join, self._leave, self._cut, self._verify))()
            ahead = self._rng.random() < 0.5
            for _ in range(self._rng.choice((3, 6, 14))):
                self.step(ahead=ahead)
        assert self.replayed.held() == self.eager.held()

    def step(self, *, ahead: bool = False) -> None:
        drawn, logits = self.replayed.step(self.turns, ahead=ahead)
        expected, same = self.eager.step(self.turns, ahead=ahead)
        assert mx.array_equal(logits, same, equal_nan=True), self._where()
        tokens: list[int] = expected.tolist()  # type: ignore[assignment]
        assert drawn.tolist() == tokens, self._where()
        for name, token in zip(self.eager.names, tokens, strict=True):
            self.turns[name].tokens.append(token)

    def _where(self) -> str:
        lengths, steps = self.eager.arena.table.lengths, self.replayed.steps
        return f"behind {lengths}, {steps.made} traces, {steps.replayed} replays"

    def _join(self) -> None:
        if len(self.turns) == 4:
            self._leave()
        name, self._next = self._next, self._next + 1
        prompt = [self._rng.randrange(1, 128) for _ in range(self._rng.choice(_LENGTHS))]
        sampling = self._rng.choice(SAMPLINGS)
        self.turns[name] = make_request(f"{name}", [], [*prompt, 3], sampling, turn=1)
        trunk = self._rng.choice([NO_TRUNK, *self._trunks * 3])
        reads = self._rng.random() < 0.7
        for side in (self.replayed, self.eager):
            if trunk.end:
                side.fork(name, trunk, prompt, reads=reads)
            else:
                side.join(name, prompt)

    def _leave(self) -> None:
        if len(self.turns) > 1:
            name = self._rng.choice(sorted(self.turns))
            del self.turns[name]
            for side in (self.replayed, self.eager):
                side.leave(name)

    def _cut(self) -> None:
        """Behind a step, which is all that states can be cut by."""
        self.step()
        name = self._rng.choice(sorted(self.turns))
        for side in (self.replayed, self.eager):
            side.cut(name, 1)
        self.turns[name].tokens.pop()

    def _verify(self) -> None:
        if self._flat:
            tokens = [self._rng.randrange(1, 128) for _ in range(self._rng.randint(1, 4))]
            one, other = (side.verify(tokens) for side in (self.replayed, self.eager))
            assert mx.array_equal(one, other), self._where()


def load(model: nn.Module) -> LoadedModel:
    return load_model(lambda: (model, PlainTokenizer()), ModelOptions(name="m"))


def turns_of(count: int) -> dict[int, Request]:
    return {name: make_request(f"{name}", [], [name + 1], Sampling()) for name in range(count)}


def rows_of(loaded: LoadedModel, *lengths: int, worth: float = 1) -> Rows:
    rows = Rows(loaded, worth, floats=True)
    for name, prompt in enumerate(prompts_of(lengths)):
        rows.join(name, prompt)
    return rows
