"""Slots, blocks, token boundaries, ranges to save: integers only, against simple models."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvactors.core.cache.blocks import BLOCK_TOKENS, BlockPool, blocks_for
from kvactors.core.cache.slots import SlotTable, grown_capacity
from kvactors.core.cache.spec import LayerSpec, ModelCacheSpec, choose_group_size
from kvactors.core.conversation.token_offsets import token_boundary
from kvactors.core.errors import GroupSizeMismatch, MemoryExceeded

PIECES = st.lists(st.integers(0, 1), max_size=5)


@dataclass
class PlainRow:
    """What a row should be; `pieces` by name, each of 100 tokens."""

    name: int
    length: int
    pieces: list[int]


class Slots(RuleBasedStateMachine):
    """The table against a plain list of rows in the order of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(max_slabs=3, launch_tokens=300)
        self.rows: list[PlainRow] = []
        self.names = iter(range(1 << 20))

    @rule(length=st.integers(0, 3000), last=st.booleans(), pieces=PIECES)
    def join(self, length: int, last: bool, pieces: list[int]) -> None:
        pieces = pieces[: length // 100]
        beginning = tuple((name, 100 * (at + 1)) for at, name in enumerate(pieces))
        slab = self.table.choose_slab(length, beginning, last=last)
        old = self.table.slabs[slab].capacity if slab < len(self.table.slabs) else 0
        row = self.table.commit_join(slab, length, grown_capacity(old, length), beginning)
        if last:
            assert row == len(self.rows)
        self.rows.insert(row, PlainRow(next(self.names), length, pieces))

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), at=st.integers(0, 5), name=st.integers(0, 1))
    def note(self, data: st.DataObject, at: int, name: int) -> None:
        row = data.draw(st.integers(0, len(self.rows) - 1))
        known = self.rows[row]
        if 100 * (at + 1) <= known.length:
            self.table.note(row, name, 100 * at, 100 * (at + 1))
            if at == len(known.pieces):
                known.pieces = [*known.pieces, name]

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        row = data.draw(st.integers(0, len(self.rows) - 1))
        slab, _ = self.table.locate(row)
        moved = self.table.first_row(slab) + len(self.table.slabs[slab].lengths) - 1
        self.table.commit_leave(row)
        self.rows[row] = self.rows[moved]
        del self.rows[moved]

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def keep_some(self, data: st.DataObject) -> None:
        keep = [i for i in range(len(self.rows)) if data.draw(st.booleans())]
        self.table.commit_filter(self.table.plan_filter(keep))
        self.rows = [self.rows[i] for i in keep]

    @precondition(lambda self: self.rows)
    @rule()
    def step(self) -> None:
        if all(max(s.lengths) < s.capacity for s in self.table.slabs):
            self.table.advance(1)
            for row in self.rows:
                row.length += 1

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        row = data.draw(st.integers(0, len(self.rows) - 1))
        known = self.rows[row]
        known.length = data.draw(st.integers(0, known.length))
        known.pieces = known.pieces[: known.length // 100]
        self.table.set_length(row, known.length)

    @invariant()
    def agrees(self) -> None:
        self.table.check()
        assert self.table.lengths == [row.length for row in self.rows]
        for index, row in enumerate(self.rows):
            assert [name for name, _ in self.table.shared_pieces(index)] == row.pieces
        for slab in range(len(self.table.slabs)):
            first = self.table.first_row(slab)
            rows = self.rows[first : first + len(self.table.slabs[slab].rows)]
            least = min(len(row.pieces) for row in rows)
            alike = [n for n in range(least + 1) if len({(*r.pieces[:n],) for r in rows}) == 1]
            common = 100 * max(alike)
            worth = (len(rows) - 1) * common > self.table.launch_tokens
            assert self.table.shared(slab) == (common if worth else 0)


TestSlots = Slots.TestCase


def test_a_piece_that_ends_after_its_row_is_not_what_the_row_begins_with() -> None:
    table = SlotTable()
    row = table.commit_join(0, 300, 512)

    table.note(row, 1, 0, 256)
    table.note(row, 2, 256, 301)

    assert table.shared_pieces(row) == ((1, 256),)
    table.check()


def test_rows_that_begin_alike_share_a_slab_and_a_stranger_gets_another() -> None:
    table = SlotTable(max_slabs=2, launch_tokens=300)
    kin = [((7, 1000),), ((7, 1000), (8, 1100)), ((7, 1000), (9, 1200))]
    slabs = []
    for length, beginning in [(1200, kin[0]), (1250, kin[1]), (1210, ()), (1300, kin[2])]:
        slab = table.choose_slab(length, beginning)
        table.commit_join(slab, length, 2048, beginning)
        slabs.append(slab)

    assert slabs == [0, 0, 1, 0]
    assert (table.shared(0), table.shared(1)) == (1000, 0)


class Blocks(RuleBasedStateMachine):
    """The pool against what each agent should hold."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(24)
        self.tokens: dict[str, int] = {}

    names = st.sampled_from(["a", "b", "c", "d"])

    @rule(name=names, tokens=st.integers(0, 3000))
    def allocate(self, name: str, tokens: int) -> None:
        missing, free = self.pool.missing(name, tokens), self.pool.free_blocks
        if missing > free:
            with pytest.raises(MemoryExceeded, match=f"{missing} more blocks needed, {free} of 24"):
                self.pool.allocate(name, tokens)
        else:
            self.pool.allocate(name, tokens)
            self.tokens[name] = max(self.tokens.get(name, 0), tokens)

    @rule(name=names, tokens=st.integers(0, 3000))
    def shrink(self, name: str, tokens: int) -> None:
        self.pool.shrink(name, tokens)
        self.tokens[name] = min(self.tokens.get(name, 0), tokens)

    @rule(parent=names, child=names, tokens=st.integers(0, 3000))
    def share(self, parent: str, child: str, tokens: int) -> None:
        if self.pool.held(parent) and not self.pool.held(child) and parent != child:
            shared = min(tokens, self.pool.held(parent) * BLOCK_TOKENS) // BLOCK_TOKENS
            if shared:
                self.pool.share(parent, child, tokens)
                self.tokens[child] = shared * BLOCK_TOKENS

    @rule(name=names)
    def free(self, name: str) -> None:
        self.pool.free(name)
        self.tokens[name] = 0

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        for name, tokens in self.tokens.items():
            assert self.pool.held(name) == blocks_for(tokens)


TestBlocks = Blocks.TestCase


@given(st.integers(0, 40_000), st.integers(0, 40_000))
def test_capacity_grows_enough_and_not_too_much(current: int, needed: int) -> None:
    capacity = grown_capacity(current, needed)

    assert capacity >= max(current, needed)
    assert capacity <= max(current, 256, 2 * needed, needed + 1024 + 256, needed * 5 // 4 + 256)


@given(st.lists(st.text(max_size=5), max_size=20), st.integers(0, 120))
def test_a_token_is_reused_only_if_all_its_characters_match(
    pieces: list[str], characters: int
) -> None:
    ends = [len("".join(pieces[: i + 1])) for i in range(len(pieces))]

    kept = token_boundary(ends, characters)

    assert all(end <= characters for end in ends[:kept])
    assert all(end > characters for end in ends[kept:])


@pytest.mark.parametrize(
    ("head_dim", "bits", "asked", "expected"),
    [
        (64, 4, None, 64),
        (96, 4, None, 32),
        (80, 4, None, None),
        (128, 8, 128, 128),
        (64, None, 64, None),
    ],
)
def test_group_size_is_64_else_32_else_float(
    head_dim: int, bits: int | None, asked: int | None, expected: int | None
) -> None:
    assert choose_group_size(head_dim, bits, asked) == expected


def test_a_head_dim_that_nothing_divides_is_refused_only_when_asked_for() -> None:
    with pytest.raises(GroupSizeMismatch, match="leave group_size unset"):
        choose_group_size(80, 4, 64)


def test_bytes_per_token_follow_the_formula() -> None:
    def spec(bits: int | None, dtype: str) -> ModelCacheSpec:
        group = 64 if bits else None
        return ModelCacheSpec((LayerSpec("full", 4, 64, bits, group, dtype),) * 8, 128, 4096)

    # [paper, 3.2]: half a byte a number and two scales per 64 against two bytes a number.
    assert spec(4, "float16").bytes_per_token / spec(None, "float16").bytes_per_token == 0.28125
    assert spec(4, "float32").bytes_per_token / spec(None, "float32").bytes_per_token == 0.15625
    assert spec(4, "float16").float_bytes_per_token == spec(None, "float16").bytes_per_token
