"""Sequences over cells: what each token sees, and which cells are free, against sets."""

from collections.abc import Sequence

import pytest
from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from visibility import PlainSequences, Token

from kvactors.core.cache.family.sequences import SeqBookkeeping
from kvactors.core.cache.family.step_plan import StepPlan, cells_of
from kvactors.core.errors import CacheFull, InvalidStep

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

    def draw_step(self, data: st.DataObject) -> list[tuple[int, int]]:
        """Sequences and new positions, most of them where one would go on."""
        chosen: list[tuple[int, int]] = []
        for _ in range(data.draw(st.integers(1, 5), "tokens")):
            sequence = data.draw(NAMES, "sequence")
            taken = {token.position for token in self.plain.of(sequence)}
            taken |= {position for other, position in chosen if other == sequence}
            behind = max(taken, default=-1) + 1
            others = st.integers(0, behind + 3).filter(lambda p, taken=taken: p not in taken)  # type: ignore[misc]
            chosen.append((sequence, data.draw(st.just(behind) | others, "position")))
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
        for index, (sequence, position) in enumerate(chosen):
            seen = cells_of(plan.row(index))
            assert {self.stands[cell] for cell in seen} == self.plain.sees(sequence, position)
            assert max(seen) < plan.read <= self.cache.high_water
        if plan.contiguous:
            assert list(plan.cells) == list(range(plan.read - len(chosen), plan.read))

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

    @rule()
    def clear(self) -> None:
        assume(len(self.plain.tokens) > CAPACITY // 2)
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


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def stepped(cache: SeqBookkeeping, *tokens: tuple[int, int]) -> StepPlan:
    """A step of (sequence, position) tokens."""
    cache.begin_step([sequence for sequence, _ in tokens])
    plan = cache.plan([position for _, position in tokens])
    cache.end_step()
    return plan


def test_one_sequence_needs_no_mask() -> None:
    cache = SeqBookkeeping(8)

    prefill = stepped(cache, *((0, position) for position in range(5)))
    decode = stepped(cache, (0, 5))

    assert prefill == StepPlan(range(5), 5)
    assert decode == StepPlan(range(5, 6), 6)


def test_branches_see_the_trunk_and_not_each_other() -> None:
    cache = SeqBookkeeping(8)
    stepped(cache, (0, 0), (0, 1))
    cache.seq_cp(0, 1)
    cache.seq_cp(0, 2)

    plan = stepped(cache, (1, 2), (2, 2), (2, 3))

    assert plan == StepPlan((2, 3, 4), 5, (0b00111, 0b01011, 0b11011))
    assert cache.owners(0) == {0, 1, 2}


def test_what_one_lets_go_of_is_free_when_nobody_holds_it() -> None:
    cache = SeqBookkeeping(4)
    stepped(cache, (0, 0), (0, 1), (0, 2))
    cache.seq_cp(0, 1, 0, 2)

    cache.seq_rm(0)
    one_left = stepped(cache, (2, 0), (2, 1))
    cache.seq_rm(1)

    assert list(one_left.cells) == [2, 3]
    assert [list(stepped(cache, (3, 0)).cells), cache.used] == [[0], 3]


def test_a_hundred_sequences_share_a_trunk() -> None:
    cache = SeqBookkeeping(110)
    stepped(cache, *((0, position) for position in range(10)))
    for branch in range(1, 101):
        cache.seq_cp(0, branch)

    plan = stepped(cache, *((branch, 10) for branch in range(1, 101)))
    cache.seq_keep(70)

    assert [cells_of(plan.row(n)) for n in (0, 99)] == [[*range(11)], [*range(10), 109]]
    assert (cache.used, cache.seq_len(70), cache.owners(79)) == (11, 11, {70})
    cache.check()


def test_a_window_that_lost_its_beginning_goes_on_at_its_position() -> None:
    cache = SeqBookkeeping(4)
    stepped(cache, *((1, position) for position in range(4)))

    cache.seq_rm(1, 0, 2)
    plan = stepped(cache, (1, cache.next_position(1)))

    assert (cache.seq_len(1), cache.next_position(1)) == (3, 5)
    assert plan == StepPlan((0,), 4, (0b1101,))


def test_freed_cells_are_taken_from_the_lowest_on_and_reads_become_shorter() -> None:
    cache = SeqBookkeeping(100)
    stepped(cache, *((0, position) for position in range(20)))
    stepped(cache, *((1, position) for position in range(60)))

    cache.seq_rm(1, 5)
    cache.seq_rm(0, 0, 2)
    plan = stepped(cache, (1, 5), (1, 6), (1, 7))

    assert list(plan.cells) == [0, 1, 25]
    assert (plan.read, cache.high_water) == (26, 26)


VERBS = {
    "begin_step": lambda cache: cache.begin_step([0]),
    "seq_cp": lambda cache: cache.seq_cp(0, 7),
    "seq_rm": lambda cache: cache.seq_rm(0, 1, 2),
    "seq_keep": lambda cache: cache.seq_keep(0),
    "clear": lambda cache: cache.clear(),
    "end_step": lambda cache: cache.end_step(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_plan_is_for_one_step_and_each_verb_makes_it_void(verb: str) -> None:
    cache = SeqBookkeeping(16)
    stepped(cache, (0, 0), (0, 1), (1, 0))
    cache.begin_step([0])
    cache.plan([2])

    VERBS[verb](cache)

    with pytest.raises(InvalidStep, match=r"begin_step says so|position 2 twice"):
        cache.plan([2])


def test_a_step_that_failed_may_be_tried_again() -> None:
    cache = SeqBookkeeping(4)
    stepped(cache, (0, 0))
    cache.begin_step([0, 1])
    first = cache.plan([1, 0])

    cache.take_back()

    assert cache.used == 1
    assert cache.plan([1, 0]) == first


@pytest.mark.parametrize(
    ("sequences", "positions", "message"),
    [
        ([0], [1, 2], "for 1 tokens: the step has 2"),
        ([0, 0], [1, 1], "position 1 twice"),
        ([0], [-1], "a position is a whole number from 0 on, not -1"),
        ([-3], [1], "a sequence is a whole number from 0 on, not -3"),
        ([0], [1.5], "a position is a whole number from 0 on, not 1.5"),
        ([], [], "at least one token"),
    ],
)
def test_what_is_no_step_is_refused_and_changes_nothing(
    sequences: list[int], positions: list[int], message: str
) -> None:
    cache = SeqBookkeeping(8)
    stepped(cache, (0, 0))

    with pytest.raises(InvalidStep, match=message):
        stepped(cache, *zip(sequences, positions, strict=True)) if len(sequences) == len(
            positions
        ) else (cache.begin_step(sequences), cache.plan(positions))

    assert cache.used == 1
    cache.check()


def test_a_step_that_nobody_declared_is_refused() -> None:
    with pytest.raises(InvalidStep, match="begin_step"):
        SeqBookkeeping(8).plan([0])


@pytest.mark.parametrize("capacity", [0, -1, 2.5, "8"])
def test_a_capacity_that_is_no_number_of_cells_is_refused(capacity: int) -> None:
    with pytest.raises(InvalidStep, match="whole number of cells from 1 on"):
        SeqBookkeeping(capacity)
