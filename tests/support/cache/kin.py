"""Rows that read what they begin with where it is, and the same rows that hold copies of it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from hypothesis import strategies as st

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.pieces import Piece, make_trunk
from kvactors.core.arena.wire import to_raw
from kvactors.core.cache.slabs import NO_TRUNK
from kvactors.core.engine.runner import new_arena
from kvactors.core.model.load import LoadedModel

__all__ = ["OPERATIONS", "Kin", "beginning"]

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.integers(0, 5), st.integers(1, 90)),
        st.tuples(st.just("leave"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("step"), st.just(1), st.just(0)),
        st.tuples(st.just("step"), st.integers(2, 70), st.just(0)),
        st.tuples(st.just("flat"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, 99), st.integers(0, 9)),
        st.tuples(st.just("move"), st.integers(0, 99), st.just(0)),
        st.tuples(st.just("shrink"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


def beginning(loaded: LoadedModel, tokens: Sequence[int], *borders: int) -> list[Piece]:
    """The KV of these tokens, in pieces that end at the `borders` and where the tokens do."""
    arena = new_arena(loaded)
    arena.add_row(0, len(tokens))
    arena.forward(loaded.model, mx.array([tokens]))
    ends = [*borders, len(tokens)]
    return [arena.export(0, first, last) for first, last in zip([0, *ends], ends, strict=False)]


@dataclass
class Side:
    """An arena and whose row is where; `reads`: rows read what they begin with where it is."""

    loaded: LoadedModel
    arena: Arena
    reads: bool
    names: list[int] = field(default_factory=list)

    def join(self, name: int, pieces: Sequence[Piece], trunk: int, new: Sequence[int]) -> mx.array:
        """A row with these pieces, the first `trunk` of them not copied if it may, and new tokens;
        the logits of those."""
        arena, begin = new_arena(self.loaded), pieces[-1].end if pieces else 0
        held = make_trunk(pieces[:trunk]) if self.reads else NO_TRUNK
        arena.add_row(begin, begin + len(new), trunk=held)
        for piece in pieces:
            arena.load(0, piece)
        logits = arena.forward(self.loaded.model, mx.array([new]))[0]
        self.names.insert(self.arena.take(arena, 0), name)
        return logits

    def step(self, fed: dict[int, list[int]]) -> dict[int, mx.array]:
        """Feed each row as many tokens as the others: the logits of each."""
        logits = self.arena.forward(self.loaded.model, mx.array([fed[n] for n in self.names]))
        return dict(zip(self.names, logits, strict=True))

    def flat(self, fed: dict[int, list[int]]) -> dict[int, mx.array]:
        """Feed each row some tokens in one flat step: the logits of each."""
        counts = [len(fed[name]) for name in self.names]
        tokens = mx.array([token for name in self.names for token in fed[name]])
        logits = self.arena.forward_flat(self.loaded.model, tokens, counts)
        parts = mx.split(logits, np.cumsum(counts)[:-1].tolist())
        return dict(zip(self.names, parts, strict=True))

    def leave(self, name: int) -> None:
        row = self.names.index(name)
        moved = self.arena.leave(row)
        self.names[row] = self.names[moved]
        del self.names[moved]

    def move(self, name: int) -> None:
        """A row goes to another arena and comes back."""
        other = new_arena(self.loaded)
        other.take(self.arena, self.names.index(name))
        self.leave(name)
        self.names.insert(self.arena.take(other, 0), name)

    def stored(self, name: int) -> list[object]:
        """Every byte that a row holds."""
        row = self.names.index(name)
        piece = self.arena.export(row, 0, self.arena.table.lengths[row])
        return [(what, bytes(data)) for *what, data in to_raw(piece)]


class Kin:
    """Rows on two sides: reading, and holding copies. What they give is compared to the bit."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.sides = [Side(loaded, new_arena(loaded), reads) for reads in (True, False)]
        self._rng = np.random.default_rng(3)
        self.beginnings = [
            beginning(loaded, self._some(200), 64, 130),
            beginning(loaded, self._some(256), 128),
        ]
        self._before = [list(map(to_bytes, pieces)) for pieces in self.beginnings]
        self._names: Iterator[int] = iter(range(1 << 20))
        self._least: dict[int, int] = {}

    @property
    def names(self) -> list[int]:
        """Those of all rows."""
        return sorted(self._least)

    @property
    def reads(self) -> Arena:
        """The arena whose rows read what they begin with where it is."""
        return self.sides[0].arena

    def do(self, kind: str, first: int, second: int) -> bool:
        """One operation; whether both sides gave the same."""
        if kind == "join":
            return self.join(first, second)
        if not self._least:
            return True
        name = self.names[first % len(self._least)]
        if kind == "step":
            return self.step(first)
        if kind == "flat":
            return self.flat(first)
        for side in self.sides:
            if kind == "leave":
                side.leave(name)
            elif kind == "move":
                side.move(name)
            elif kind == "cut":
                row = side.names.index(name)
                length = side.arena.table.lengths[row]
                side.arena.cut(row, max(self._least[name], length - second))
            elif kind == "shrink":
                side.arena.shrink()
        if kind == "leave":
            del self._least[name]
        return self.same_bytes()

    def join(self, kind: int, own: int) -> bool:
        """A row with the first or the second beginning, or none, and tokens of its own: of even
        kinds it may read all pieces, of odd ones all but the last."""
        pieces = self.beginnings[kind // 2] if kind < 4 else []
        trunk, name, new = len(pieces) - kind % 2, next(self._names), self._some(own)
        self._least[name] = pieces[-1].end if pieces else 1
        one, other = (side.join(name, pieces, max(0, trunk), new) for side in self.sides)
        return bool(mx.array_equal(one, other))

    def step(self, width: int) -> bool:
        """Feed every row so many tokens."""
        fed = {name: self._some(width) for name in self._least}
        return _alike([side.step(fed) for side in self.sides])

    def flat(self, seed: int) -> bool:
        """Feed each row up to five tokens."""
        counts = np.random.default_rng(seed).integers(1, 6, len(self._least)).tolist()
        fed = {n: self._some(count) for n, count in zip(self._least, counts, strict=True)}
        return _alike([side.flat(fed) for side in self.sides])

    def same_bytes(self) -> bool:
        """Whether every row holds the same bytes on both sides, and pieces are as they were."""
        for side in self.sides:
            side.arena.table.check()
        rows = all(len({repr(s.stored(name)) for s in self.sides}) == 1 for name in self._least)
        return rows and self._before == [list(map(to_bytes, one)) for one in self.beginnings]

    def _some(self, count: int) -> list[int]:
        tokens: list[int] = self._rng.integers(1, 128, count).tolist()
        return tokens


def to_bytes(piece: Piece) -> list[bytes]:
    """A piece's bytes, copied."""
    return [bytes(data) for *_, data in to_raw(piece)]


def _alike(both: list[dict[int, mx.array]]) -> bool:
    one, other = both
    return all(bool(mx.array_equal(one[name], other[name])) for name in one)
