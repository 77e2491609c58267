"""What whoever runs a model sees of a cache: a face for each way of decoding [cache-family, 4.1].

A face is a protocol, and a session holds the face: what a cache can do is the type by which it is
held, checked when the session is made, not a flag that is asked while it runs.

    Cache          is there room, how much, begin again
    DecodeCache    one sequence, which may be taken back
    SeqCache       sequences that fork, and leave cells to each other
    TreeCache      a trunk, and candidates for what comes next
    Planner        what the layer of bytes asks of each of them
    Mover          and of one that brings cells together
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from kvactors.core.cache.family.step_plan import StepPlan

__all__ = ["Cache", "DecodeCache", "Mover", "Moves", "Planner", "SeqCache", "TreeCache"]


@runtime_checkable
class Cache(Protocol):
    """What every cache shows."""

    @property
    def capacity(self) -> int:
        """Cells at most."""

    def can_extend(self, count: int = 1) -> bool:
        """Whether `count` more tokens have room now."""

    def clear(self) -> None:
        """Forget all of it; no byte is touched."""


@runtime_checkable
class DecodeCache(Cache, Protocol):
    """One sequence."""

    @property
    def length(self) -> int:
        """Tokens held: the position of the next one."""

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens; no byte is touched."""


@runtime_checkable
class SeqCache(Cache, Protocol):
    """Sequences, each named by a number that is not negative. They share cells."""

    def begin_step(self, sequences: Sequence[int]) -> None:
        """Whose the tokens of the next step are, one number for each."""

    def seq_cp(self, source: int, target: int, start: int = 0, end: int | None = None) -> None:
        """`target` holds the cells of `source` at positions [start, end) too; nothing is copied."""

    def seq_rm(self, sequence: int, start: int = 0, end: int | None = None) -> None:
        """`sequence` lets go of positions [start, end); a cell is free when nobody holds it."""

    def seq_keep(self, sequence: int) -> None:
        """All others let go of everything."""

    def seq_len(self, sequence: int) -> int:
        """Tokens that `sequence` holds."""

    def next_position(self, sequence: int) -> int:
        """One behind its last: more than `seq_len` where its beginning was removed."""


@runtime_checkable
class TreeCache(Cache, Protocol):
    """Committed tokens, and a tree of candidates behind them."""

    @property
    def length(self) -> int:
        """Committed tokens: the position of a root."""

    @property
    def positions(self) -> Sequence[int]:
        """Of the nodes that were proposed and have not run: siblings have the same."""

    def propose(self, parents: Sequence[int]) -> None:
        """The tokens of the next step are nodes of the tree, each behind the node that `parents`
        names; -1 is a root's."""

    def commit(self, accepted: Sequence[int]) -> None:
        """These nodes, from a root down, are committed; the others are forgotten."""


Moves = Callable[[int, Sequence[int]], None]
"""Called with (base, cells): the bytes of `cells` go, in this order, to base, base + 1, ..."""


@runtime_checkable
class Planner(Protocol):
    """What the layer of bytes asks of a cache."""

    def plan(self, positions: Sequence[int]) -> StepPlan:
        """Where the tokens at these positions are written and what they see. All layers of a step
        ask, and get the same one; each verb makes it void."""

    def end_step(self) -> None:
        """All layers have it: the next plan is another step's."""

    def take_back(self) -> None:
        """The step under way failed: its tokens are not there. What was declared stays so."""


@runtime_checkable
class Mover(Protocol):
    """A cache whose commits move bytes."""

    def on_commit(self, moves: Moves) -> None:
        """Call `moves` at each commit."""
