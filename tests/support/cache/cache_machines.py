"""Machines for hypothesis: a cache of the family against sets, whatever is done to it."""

from collections.abc import Sequence

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from visibility import PlainSequences, PlainTree, Token

from kvactors.core.cache.family.cells import cells_of
from kvactors.core.cache.family.sequences import SeqBookkeeping
from kvactors.core.cache.family.step_plan import StepPlan
from kvactors.core.cache.family.tree import TreeBookkeeping
from kvactors.core.errors import CacheFull, InvalidStep

__all__ = ["Sequences", "Trees"]

CAPACITY = 24
NAMES = st.integers(0, 4)


class Sequences(RuleBasedStateMachine):
    """The bookkeeping against sets of tokens. What is written in which cell is known here alone:
    `stands`, token by cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = SeqBookkeeping(CAPACITY)
        self.plain = PlainSequences()
        self.stands: dict[int, Token] = {}

    def attend(self, positions: list[int], names: list[int], sees: list[set[int]]) -> None:
        """For machines that attend too: tokens of these names run, and see those."""

    def spoil(self, positions: list[int]) -> None:
        """And a step that fails in the middle."""

    def draw_step(self, data: st.DataObject) -> list[tuple[int, int]]:
        """Sequences and new positions, most of them where one would go on."""
        chosen: list[tuple[int, int]] = []
        for _ in range(data.draw(st.integers(1, 5), "tokens")):
            sequence = data.draw(NAMES, "sequence")
            taken = {token.position for token in self.plain.of(sequence)}
            taken |= {position for other, position in chosen if other == sequence}
            behind = max(taken, default=-1) + 1
            free = [position for position in range(behind + 4) if position not in taken]
            position = data.draw(st.just(behind) | st.sampled_from(free), "position")
            chosen.append((sequence, position))
        return chosen

    @rule(data=st.data(), fails=st.sampled_from([False, False, False, True]))
    def step(self, data: st.DataObject, fails: bool) -> None:
        chosen = self.draw_step(data)
        self.cache.begin_step([sequence for sequence, _ in chosen])
        positions = [position for _, position in chosen]
        if len(chosen) > CAPACITY - len(self.plain.tokens):
            assert not self.cache.can_extend(len(chosen))
            with pytest.raises(CacheFull, match=rf"needs {len(chosen)} cells.*of {CAPACITY}"):
                self.cache.plan(positions)
            return
        assert self.cache.can_extend(len(chosen))

        plan = self.cache.plan(positions)

        assert self.cache.plan(positions) is plan
        if fails:
            self.spoil(positions)
            self.cache.take_back()
            return
        self.written(plan, chosen)
        if data.draw(st.booleans(), "ended"):
            self.cache.end_step()

    def written(self, plan: StepPlan, chosen: Sequence[tuple[int, int]]) -> None:
        live = {cell for cell, token in self.stands.items() if token in self.plain.tokens}
        free = [cell for cell in range(CAPACITY) if cell not in live]
        assert list(plan.cells) == free[: len(chosen)]
        for cell, (sequence, position) in zip(plan.cells, chosen, strict=True):
            self.stands[cell] = self.plain.add(sequence, position)
        sees = [self.plain.sees(*one) for one in chosen]
        for index in range(len(chosen)):
            seen = cells_of(plan.row(index))
            assert {self.stands[cell] for cell in seen} == sees[index]
            assert max(seen) < plan.read <= self.cache.high_water
        if plan.contiguous:
            assert list(plan.cells) == list(range(plan.read - len(chosen), plan.read))
        names = [self.stands[cell].name for cell in plan.cells]
        self.attend(
            [position for _, position in chosen], names, [{t.name for t in one} for one in sees]
        )

    @rule(data=st.data(), other=NAMES)
    def fork(self, data: st.DataObject, other: int) -> None:
        source = self.draw_one(data)
        span = self.draw_span(data, source)
        if not self.plain.of(source):
            with pytest.raises(InvalidStep, match=f"sequence {source} holds nothing"):
                self.cache.seq_cp(source, other, *span)
        elif self.plain.clashes(source, other, *span):
            with pytest.raises(InvalidStep, match=f"sequence {other} already holds position"):
                self.cache.seq_cp(source, other, *span)
        else:
            self.cache.seq_cp(source, other, *span)
            self.plain.fork(source, other, *span)

    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        sequence = self.draw_one(data)
        span = self.draw_span(data, sequence)
        self.cache.seq_rm(sequence, *span)
        self.plain.remove(sequence, *span)

    def draw_one(self, data: st.DataObject) -> int:
        """A sequence, most often one that holds something."""
        live = sorted({owner for token in self.plain.tokens for owner in token.owners})
        return data.draw(st.sampled_from(live) | NAMES if live else NAMES, "sequence")

    def draw_span(self, data: st.DataObject, sequence: int) -> tuple[int, int | None]:
        last = self.plain.next_position(sequence) + 1
        start = data.draw(st.just(0) | st.integers(0, last), "start")
        return start, data.draw(st.none() | st.integers(start, last), "end")

    @rule(sequence=NAMES)
    def keep(self, sequence: int) -> None:
        if not self.plain.of(sequence):
            with pytest.raises(InvalidStep, match=f"sequence {sequence} holds nothing"):
                self.cache.seq_keep(sequence)
            return
        self.cache.seq_keep(sequence)
        self.plain.keep(sequence)

    @precondition(lambda self: self.plain.tokens)
    @rule(data=st.data())
    def a_position_is_taken(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(sorted(self.plain.tokens, key=lambda t: t.name)))
        sequence = data.draw(st.sampled_from(sorted(token.owners)))
        self.cache.begin_step([sequence])

        with pytest.raises(InvalidStep, match=f"position {token.position} twice"):
            self.cache.plan([token.position])

    @precondition(lambda self: len(self.plain.tokens) > CAPACITY // 2)
    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.plain = PlainSequences()

    @invariant()
    def agrees(self) -> None:
        self.cache.check()
        assert self.cache.used == len(self.plain.tokens)
        for sequence in range(5):
            assert self.cache.seq_len(sequence) == len(self.plain.of(sequence))
            assert self.cache.next_position(sequence) == self.plain.next_position(sequence)
        for cell, token in self.stands.items():
            if token in self.plain.tokens:
                assert self.cache.owners(cell) == token.owners


class Trees(RuleBasedStateMachine):
    """The bookkeeping against sets of names. Bytes are names: `stands`, by cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = TreeBookkeeping(CAPACITY)
        self.cache.on_commit(self.move)
        self.plain = PlainTree()
        self.stands: dict[int, int] = {}
        # Names of the nodes, as the cache numbers them, and how many of them have run.
        self.nodes: list[int] = []
        self.ran = 0

    def move(self, base: int, cells: Sequence[int]) -> None:
        moved = [self.stands[cell] for cell in cells]
        self.stands.update(enumerate(moved, base))
        self.moved(base, cells)

    def moved(self, base: int, cells: Sequence[int]) -> None:
        """For machines that hold bytes."""

    def attend(self, positions: list[int], names: list[int], sees: list[set[int]]) -> None:
        """For machines that attend too: tokens of these names run, and see those."""

    def spoil(self, positions: list[int]) -> None:
        """And a step that fails in the middle."""

    @precondition(lambda self: not self.nodes)
    @rule(count=st.integers(1, 5), fails=st.booleans())
    def append(self, count: int, fails: bool) -> None:
        held = len(self.plain.committed)
        positions = [held + n for n in range(count)]
        if held + count > CAPACITY:
            with pytest.raises(CacheFull, match=f"{held} of {CAPACITY} are held"):
                self.cache.plan(positions)
            return
        plan = self.cache.plan(positions)
        assert self.cache.plan(positions) is plan
        if fails:
            self.spoil(positions)
            self.cache.take_back()
            return
        self.written(plan, positions, [self.plain.append() for _ in range(count)])
        self.cache.end_step()
        assert plan.contiguous

    def written(self, plan: StepPlan, positions: list[int], names: list[int]) -> None:
        alive = {*self.plain.committed, *self.plain.parents} - {*names}
        assert not {self.stands[cell] for cell in plan.cells if cell in self.stands} & alive
        self.stands.update(zip(plan.cells, names, strict=True))
        sees = [self.plain.sees(name) for name in names]
        for index in range(len(names)):
            seen = cells_of(plan.row(index))
            assert {self.stands[cell] for cell in seen} == sees[index]
            assert max(seen) < plan.read
        self.attend(positions, names, sees)

    @precondition(lambda self: self.ran == len(self.nodes))
    @rule(data=st.data(), count=st.integers(1, 5))
    def propose(self, data: st.DataObject, count: int) -> None:
        first = len(self.nodes)
        parents = [data.draw(st.integers(-1, first + n - 1), "parent") for n in range(count)]
        if len(self.plain.committed) + first + count > CAPACITY:
            assert not self.cache.can_extend(count)
            with pytest.raises(CacheFull, match=rf"needs {count} cells.*of {CAPACITY}"):
                self.cache.propose(parents)
            return
        assert self.cache.can_extend(count)

        self.cache.propose(parents)

        for parent in parents:
            self.nodes.append(self.plain.grow(None if parent < 0 else self.nodes[parent]))

    @precondition(lambda self: self.ran < len(self.nodes))
    @rule(fails=st.booleans())
    def run_frontier(self, fails: bool) -> None:
        names = self.nodes[self.ran :]
        positions = [self.plain.position(name) for name in names]
        assert self.cache.positions == positions
        with pytest.raises(InvalidStep, match="have not run yet"):
            self.cache.propose([-1])
        plan = self.cache.plan(positions)
        assert self.cache.plan(positions) is plan
        if fails:
            self.spoil(positions)
            self.cache.take_back()
            return
        self.written(plan, positions, names)
        self.ran = len(self.nodes)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        last = data.draw(st.sampled_from([None, *self.nodes[: self.ran]]), "last")
        chain = self.plain.chain(last)

        self.cache.commit([self.nodes.index(name) for name in chain])

        self.plain.commit(last)
        self.nodes, self.ran = [], 0
        # What is behind is dead.
        self.stands = {cell: self.stands[cell] for cell in range(self.cache.length)}

    @rule(data=st.data())
    def what_is_no_chain_is_refused(self, data: st.DataObject) -> None:
        wrong = data.draw(st.lists(st.integers(0, len(self.nodes) + 1), min_size=1, max_size=4))
        chains = [
            [self.nodes.index(n) for n in self.plain.chain(name)] for name in self.nodes[: self.ran]
        ]
        if wrong not in chains:
            with pytest.raises(InvalidStep, match=r"has not run|from a root down"):
                self.cache.commit(wrong)

    @invariant()
    def agrees(self) -> None:
        assert (self.cache.length, self.cache.pending) == (
            len(self.plain.committed),
            len(self.nodes),
        )
        assert [self.stands[c] for c in range(self.cache.length)] == self.plain.committed
