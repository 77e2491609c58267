"""One slab of the slot arena: a rectangle of slots, the rows in them, and what all of these begin
with. Integers only, no tensors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["NO_TRUNK", "Row", "SharedPieces", "Slab", "Trunk", "piece_end"]

SharedPieces = tuple[tuple[int, int], ...]
"""The pieces that a row begins with: (name, end) of each, in order; no gap between them."""


@dataclass(slots=True)
class Row:
    """`length` tokens, and soon `expected`. Rows that begin with the same pieces hold the same
    bytes there."""

    length: int
    pieces: SharedPieces = ()
    expected: int = 0


@dataclass(frozen=True, slots=True)
class Trunk:
    """Immutable pieces that rows begin with and read where they are: their names, and the pieces
    themselves, which are nothing to a table."""

    names: SharedPieces = ()
    pieces: tuple[Any, ...] = ()

    @property
    def end(self) -> int:
        """Tokens of them."""
        return piece_end(self.names)

    def begins(self, pieces: SharedPieces) -> bool:
        """Whether a row that begins with these `pieces` may read it."""
        return pieces[: len(self.names)] == self.names


NO_TRUNK = Trunk()


@dataclass(slots=True)
class Slab:
    """One rectangle of slots x capacity tokens, behind a trunk; `rows[i]` stands in slot i."""

    capacity: int
    rows: list[Row] = field(default_factory=list)
    trunk: Trunk = NO_TRUNK

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of each row."""
        return [row.length for row in self.rows]

    def shared(self, launch_tokens: int) -> int:
        """Tokens that all rows begin with, if it pays to read them once; those of the trunk, which
        stand apart, in any case."""
        return max(self.trunk.end, _shared(self.rows, launch_tokens))

    def join_cost(self, row: Row, launch_tokens: int) -> int:
        """Tokens read more per step if a `row` joins; a slab more costs `launch_tokens`."""
        return _read([*self.rows, row], launch_tokens) - _read(self.rows, launch_tokens)

    def check(self) -> None:
        """Prove that no row is longer than its slot, or without the trunk, and no piece longer than
        its row."""
        base = self.trunk.end
        for row in self.rows:
            assert max(base, piece_end(row.pieces)) <= row.length <= base + self.capacity
            assert self.trunk.begins(row.pieces), "a row does not begin with its slab's trunk"


def _read(rows: Sequence[Row], launch_tokens: int) -> int:
    """Tokens that a step of these rows reads, padded to the longest."""
    longest = max(max(row.length, row.expected) for row in rows)
    return len(rows) * longest - (len(rows) - 1) * _shared(rows, launch_tokens)


def _shared(rows: Sequence[Row], launch_tokens: int) -> int:
    """Tokens that all begin with, if it pays to read them once."""
    common = _common([row.pieces for row in rows])
    return common if (len(rows) - 1) * common > launch_tokens else 0


def piece_end(pieces: SharedPieces) -> int:
    """Tokens of these pieces."""
    return pieces[-1][1] if pieces else 0


def _common(all_pieces: Sequence[SharedPieces]) -> int:
    """Tokens of the pieces that all of these begin with."""
    end = 0
    for nth in zip(*all_pieces, strict=False):
        if any(piece != nth[0] for piece in nth):
            break
        end = nth[0][1]
    return end
