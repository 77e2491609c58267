"""Committed tokens and a tree of candidates behind them [cache-family, 4.2, 5.3].

Node n of the tree stands in cell length + n, whatever its depth: siblings have one position and two
cells. Nodes come in frontiers, one for each step: a target proposes the whole tree and runs it in
one forward, a draft proposes a level at a time. A node sees what is committed, its ancestors, and
itself. `commit` brings one chain of nodes together behind what was committed.

    parents [-1, 0, 0, 1] behind 7 tokens     0 ─┬─ 1 ── 3
                                                 └─ 2
    position 7 8 8 9, cell 7 8 9 10           commit([0, 1, 3]): cells 7, 8, 10 go to 7, 8, 9

The root counts as a level: it is a token that was chosen and is not cached yet, so it is proposed
as the others are, and a draft of d levels takes d steps. Room is taken by what is proposed too.
"""

from collections.abc import Sequence

from kvactors.core.cache.family.contiguous import check_room, check_run, whole_capacity
from kvactors.core.cache.family.faces import Moves
from kvactors.core.cache.family.step_plan import PlanOnce, StepPlan, whole_numbers
from kvactors.core.errors import InvalidStep
from kvactors.core.numbers import whole

__all__ = ["TreeBookkeeping"]


class TreeBookkeeping:
    """`capacity` cells of what is committed and what is proposed. Without a tree a step appends, as
    a sequence does."""

    def __init__(self, capacity: int) -> None:
        self._capacity = whole_capacity(capacity)
        self._once = PlanOnce()
        self._moves: Moves | None = None
        self._begin(0)

    @property
    def capacity(self) -> int:
        """Cells at most."""
        return self._capacity

    @property
    def length(self) -> int:
        """Committed tokens: the position of a root."""
        return self._length

    @property
    def pending(self) -> int:
        """Nodes of the tree."""
        return len(self._parents)

    def can_extend(self, count: int = 1) -> bool:
        """Whether `count` more tokens have room now, beside the nodes that wait for a commit."""
        return self._length + self.pending + count <= self._capacity

    def clear(self) -> None:
        """Forget all of it; no byte is touched."""
        self._begin(0)

    def _begin(self, length: int) -> None:
        """So many tokens are committed, and there is no tree."""
        self._length = length
        self._parents: list[int] = []
        # Each node's ancestors and itself, as bits.
        self._lines: list[int] = []
        # Nodes from here on have not run.
        self._frontier = 0
        self.end_step()

    def on_commit(self, moves: Moves) -> None:
        """Call `moves` at each commit: who holds the bytes brings them together."""
        self._moves = moves

    # -- between steps -----------------------------------------------------------------

    def propose(self, parents: Sequence[int]) -> None:
        """The tokens of the next step are these nodes. Raises InvalidStep, CacheFull, changing
        nothing."""
        found = self._checked(parents)
        check_room(len(found), self._length + self.pending, self._capacity)
        self.end_step()
        for parent in found:
            line = self._lines[parent] if parent >= 0 else 0
            self._lines.append(line | 1 << len(self._lines))
        self._parents += found

    def _checked(self, parents: Sequence[int]) -> list[int]:
        if self.waiting:
            raise InvalidStep(f"{self.waiting} nodes were proposed and have not run yet")
        if not len(parents):
            raise InvalidStep("at least one node is proposed")
        found: list[int] = []
        for given in parents:
            parent, node = whole(given), self.pending + len(found)
            if parent is None or not -1 <= parent < node:
                raise InvalidStep(
                    f"the parent of node {node} is a node before it, or -1 for a root: {given!r}"
                )
            found.append(parent)
        return found

    @property
    def waiting(self) -> int:
        """Nodes that were proposed and have not run."""
        return self.pending - self._frontier

    @property
    def positions(self) -> list[int]:
        """Of the nodes that were proposed and have not run."""
        return [self._position(node) for node in range(self._frontier, self.pending)]

    def _position(self, node: int) -> int:
        return self._length + self._lines[node].bit_count() - 1

    def commit(self, accepted: Sequence[int]) -> None:
        """These nodes, from a root down, are committed; the others, or all if there are none, are
        forgotten. Raises InvalidStep, changing nothing."""
        nodes = whole_numbers("a node", accepted)
        before = -1
        for node in nodes:
            if node >= self._frontier:
                raise InvalidStep(f"node {node} has not run: {self._frontier} nodes have")
            if self._parents[node] != before:
                raise InvalidStep(
                    f"a chain is committed from a root down: node {node} stands behind "
                    f"{self._parents[node]}, not behind {before}"
                )
            before = node
        base = self._length
        self._begin(base + len(nodes))
        if self._moves is not None and nodes:
            self._moves(base, [base + node for node in nodes])

    # -- one step ----------------------------------------------------------------------

    def plan(self, positions: Sequence[int]) -> StepPlan:
        """As Planner says. Raises InvalidStep, CacheFull, changing nothing."""
        return self._once.get(positions, self._run_tree if self._parents else self._append)

    def _append(self, positions: tuple[int, ...]) -> StepPlan:
        check_run(positions, self._length)
        check_room(len(positions), self._length, self._capacity)
        self.end_step()
        self._length += len(positions)
        return StepPlan.run(positions[0], len(positions))

    def _run_tree(self, positions: tuple[int, ...]) -> StepPlan:
        if not self.waiting:
            raise InvalidStep(f"all {self.pending} nodes ran: propose more, or commit some of them")
        if list(positions) != self.positions:
            raise InvalidStep(
                f"the nodes that were proposed stand at {self.positions}, not at {list(positions)}"
            )
        self.end_step()
        base, nodes = self._length, range(self._frontier, self.pending)
        self._frontier = self.pending
        trunk = (1 << base) - 1
        cells = range(base + nodes.start, base + nodes.stop)
        return StepPlan.of(cells, [trunk | self._lines[node] << base for node in nodes])

    def end_step(self) -> None:
        """All layers have the plan: the next one is another step's."""
        self._once.forget()
        self._before = self._length, self._frontier

    def take_back(self) -> None:
        """The step under way failed: its tokens are not there, and its nodes are still proposed."""
        self._length, self._frontier = self._before
        self._once.forget()
