"""Pieces: KV of a token range, out of the arena. Never changed, so that agents can share them.

A piece of a model with windows or states may have their checkpoint: all that they need of the
past to go on from the piece's end. Such a piece is `whole`. GPU thread only.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import count, takewhile

import mlx.core as mx

from kvactors.core.cache.blocks import BLOCK_TOKENS
from kvactors.core.cache.slabs import Trunk
from kvactors.core.cache.spec import ModelCacheSpec
from kvactors.core.quant.codec import Arrays

__all__ = [
    "LONGEST_PIECE",
    "MOST_CHECKPOINTS",
    "HeldPieces",
    "LayerPieces",
    "Piece",
    "common_end",
    "cut_piece",
    "join_pieces",
    "make_trunk",
    "thin_out",
]

# Checkpoints of the past that an agent keeps beside that of its beginning: when there are MOST, all
# but KEPT go.
MOST, KEPT = 4, 2
MOST_CHECKPOINTS = MOST + 1
# Longest piece and segment, in tokens: a cut inside one costs a copy, or a re-prefill, of it.
LONGEST_PIECE = 4 * BLOCK_TOKENS

_names = count()


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Piece:
    """KV of tokens [start, end) of one agent: evaluated, immutable, owned by whoever holds it.

    `groups[g]` holds the arrays of `spec`'s layer group g: [layers, sides, kv_heads, tokens,
    width], or for windows and states the checkpoint at `end`, or nothing. `name` is the piece's
    own, among all of the process.
    """

    start: int
    end: int
    groups: tuple[Arrays, ...]
    spec: ModelCacheSpec
    name: int = field(default_factory=_names.__next__)

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for group in self.groups for array in group.values())

    @property
    def whole(self) -> bool:
        """Whether a row can go on from its end: every layer has what it needs of the past."""
        return all(self.groups)


def common_end(one: Iterable[Piece], other: Iterable[Piece]) -> int:
    """How many of their first tokens two agents, with `one`'s pieces and the `other`'s, hold
    once."""
    both = takewhile(lambda pair: pair[0] is pair[1], zip(one, other, strict=False))
    return max((piece.end for piece, _ in both), default=0)


class LayerPieces:
    """What one layer, at `place` in its `group`, has of contiguous `pieces` from the first token
    on, read where it is: views of their arrays. Nobody writes there."""

    def __init__(self, pieces: Sequence[Piece] = (), group: int = 0, place: int = 0) -> None:
        self.end = pieces[-1].end if pieces else 0
        self._parts = [
            # A slice: an index would copy.
            (
                piece.start,
                piece.end,
                {n: a[place : place + 1].swapaxes(0, 1) for n, a in piece.groups[group].items()},
            )
            for piece in pieces
        ]

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """The tokens of each piece, [start, end)."""
        return tuple((start, end) for start, end, _ in self._parts)

    @property
    def arrays(self) -> list[Arrays]:
        """Of each piece, [sides, 1, kv_heads, tokens, width] by name."""
        return [arrays for *_, arrays in self._parts]

    def stand_in(self, arrays: Sequence[Arrays]) -> "LayerPieces":
        """The same tokens of other `arrays`, as above."""
        other = copy(self)
        other._parts = [(*tokens, a) for tokens, a in zip(self.ranges, arrays, strict=True)]
        return other

    def read(self, name: str, start: int, end: int, rows: int = 1) -> list[mx.array]:
        """Tokens [start, end) of the array `name`, as `rows` would hold them, piece by piece:
        [sides, rows, kv_heads, tokens, width]. Nothing is copied."""
        found = []
        for first, last, arrays in self._parts:
            if first < end and start < last:
                part = arrays[name][:, :, :, max(start - first, 0) : min(end, last) - first]
                found.append(mx.broadcast_to(part, (part.shape[0], rows, *part.shape[2:])))
        return found


class HeldPieces:
    """How often each piece is held, by agents and by the store, to which it is `lent`. `nbytes`
    counts each once, `lent_bytes` those that are lent, as often as they are."""

    def __init__(self) -> None:
        self.holders: Counter[Piece] = Counter()
        self.lent: Counter[Piece] = Counter()
        self.nbytes = self.lent_bytes = self.stored_bytes = 0

    @property
    def cached_bytes(self) -> int:
        """Bytes of what agents hold, without what the store alone does (`stored_bytes`)."""
        return self.nbytes - self.stored_bytes

    def common(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Those of a beginning's `pieces`, from the first on, that more than one agent holds."""
        return list(takewhile(lambda piece: self.holders[piece] - self.lent[piece] > 1, pieces))

    def hold(self, pieces: Iterable[Piece]) -> None:
        """Somebody holds these from now on."""
        for piece in pieces:
            self._count(piece, 1, 0)

    def release(self, pieces: Iterable[Piece]) -> None:
        """Somebody does not hold these any more."""
        for piece in pieces:
            self._count(piece, -1, 0)

    def lend(self, piece: Piece) -> None:
        """The store looks at the memory of a piece, maybe for longer than an agent holds it."""
        self._count(piece, 1, 1)

    def take_back(self, piece: Piece) -> None:
        """The store has let go of a piece."""
        self._count(piece, -1, -1)

    def _count(self, piece: Piece, held: int, lent: int) -> None:
        """So many more hold it, of which so many are the store."""
        holders, lenders = self.holders[piece], self.lent[piece]
        stored = 0 < lenders == holders
        self.lent_bytes += lent * piece.nbytes
        _put(self.holders, piece, holders := holders + held)
        _put(self.lent, piece, lenders := lenders + lent)
        self.nbytes += ((holders > 0) - (holders - held > 0)) * piece.nbytes
        self.stored_bytes += ((0 < lenders == holders) - stored) * piece.nbytes


def _put(counts: Counter[Piece], piece: Piece, count: int) -> None:
    if count:
        counts[piece] = count
    else:
        counts.pop(piece, None)


def make_trunk(pieces: Iterable[Piece]) -> Trunk:
    """These contiguous pieces, from the first token on, as rows can read them."""
    held = tuple(pieces)
    return Trunk(tuple((piece.name, piece.end) for piece in held), held)


def cut_piece(piece: Piece, start: int, end: int) -> Piece:
    """Tokens [start, end) of a piece, copied; its checkpoint only if it ends there too."""
    if (start, end) == (piece.start, piece.end):
        return piece
    window = slice(start - piece.start, end - piece.start)
    groups = []
    for group, cuttable in zip(piece.groups, piece.spec.by_token, strict=True):
        if cuttable:
            cut = {name: mx.contiguous(array[:, :, :, window]) for name, array in group.items()}
            groups.append(cut)
        else:
            groups.append(group if end == piece.end else {})
    mx.eval(groups)
    return Piece(start, end, tuple(groups), piece.spec)


def join_pieces(pieces: Iterable[Piece], start: int, end: int) -> Piece:
    """Tokens [start, end) of contiguous pieces, of one spec, as one."""
    parts = [
        cut_piece(piece, max(start, piece.start), min(end, piece.end))
        for piece in pieces
        if piece.start < end and start < piece.end
    ]
    if len(parts) == 1:
        return parts[0]
    groups = []
    spec = parts[0].spec
    for index, joinable in enumerate(spec.by_token):
        last = parts[-1].groups[index]
        groups.append(
            {n: mx.concatenate([p.groups[index][n] for p in parts], axis=3) for n in last}
            if joinable
            else last
        )
    mx.eval(groups)
    return Piece(start, end, tuple(groups), spec)


def thin_out(
    pieces: Sequence[Piece], shared: int, has_room: Callable[[int], bool]
) -> tuple[list[Piece], int]:
    """The pieces with fewer checkpoints, if they have many; and up to where they are as before.

    Those whose checkpoint goes are joined, with shorter ones before them too: so a token is
    joined, and written, as often as the logarithm of the longest piece, not of every turn.
    The checkpoint of a beginning of `shared` tokens stays. Unless `has_room` for the bytes of what
    is joined they stay apart, until they are joined with later ones.
    """
    whole = [i for i, piece in enumerate(pieces) if piece.whole and piece.end > shared]
    if len(whole) <= MOST:
        return list(pieces), pieces[-1].end
    first, last = whole[0], whole[-KEPT - 1]
    start, end = pieces[first].start, pieces[last].end
    while first and pieces[first - 1].start >= shared and not pieces[first - 1].whole:
        before = pieces[first - 1].start
        if start - before > min(end - start, LONGEST_PIECE):
            break
        first, start = first - 1, before
    old = pieces[first : last + 1]
    if has_room(sum(piece.nbytes for piece in old)):
        old = [join_pieces(old, start, end)]
    return [*pieces[:first], *map(_without_checkpoint, old), *pieces[last + 1 :]], start


def _without_checkpoint(piece: Piece) -> Piece:
    if not piece.whole:
        return piece
    groups = zip(piece.groups, piece.spec.by_token, strict=True)
    kept = tuple(group if cuttable else {} for group, cuttable in groups)
    return Piece(piece.start, piece.end, kept, piece.spec)
