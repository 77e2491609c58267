"""The op alone: what it returns, where, and that its bytes are what NumPy says."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from attended import DIM, HEADS, KV_HEADS, SCALE, numbers
from cache_machines import Sequences, Trees
from cell_bugs import BUGS, a_commit_moves_nothing
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from seeded import Bug, seeded

from kvactors.core.attention.export.cells import Cells, answering
from kvactors.core.attention.export.op import traced, update_and_attend
from kvactors.core.cache.family.contiguous import ContiguousBookkeeping
from kvactors.core.errors import CacheFull, InvalidStep
from kvactors.core.testing.attend_oracle import AttendOracle

LAYERS = 2
FEW = settings(max_examples=15, stateful_step_count=20, deadline=None, database=None)


def tensors(names: Sequence[int], layer: int = 0) -> list[Any]:
    return [torch.tensor(numbers(what, names, layer)) for what in "qkv"]


def asked(
    names: Sequence[int],
    positions: Sequence[int],
    layer: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Any:
    return update_and_attend(
        *tensors(names, layer), torch.tensor(list(positions)), layer, SCALE, dtype
    )


class Attends:
    """Tokens attend through the op, and through NumPy."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: Any
        self.cells = Cells(self.cache)
        self.oracle = AttendOracle(self.cache)

    def attend(self, positions: list[int], names: Sequence[int], _sees: Any = None) -> None:
        for layer in range(LAYERS):
            found, expected = self.both(positions, names, layer)
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)

    def both(self, positions: list[int], names: Sequence[int], layer: int) -> tuple[Any, Any]:
        with answering(self.cells):
            found = asked(names, positions, layer)
        q, k, v = (numbers(what, names, layer) for what in "qkv")
        return found.numpy(), self.oracle.update_and_attend(q, k, v, positions, layer, SCALE)

    def spoil(self, positions: list[int]) -> None:
        """Only one layer is reached."""
        self.both(positions, range(1000, 1000 + len(positions)), 0)


class AttendingTrees(Attends, Trees):
    def __init__(self) -> None:
        super().__init__()
        self.cache.on_commit(self.move)

    def moved(self, base: int, cells: Sequence[int]) -> None:
        self.oracle.move(base, cells)
        self.cells.gather_into(base, cells)


class AttendingSequences(Attends, Sequences):
    pass


@contextmanager
def room_for(tokens: int) -> Iterator[None]:
    """The op asks a cache for so many tokens, which holds nothing."""
    cache = ContiguousBookkeeping(tokens)
    with answering(Cells(cache)):
        yield


@pytest.mark.parametrize("machine", [AttendingSequences, AttendingTrees])
def test_whatever_forks_and_is_committed_is_attended_as_numpy_says(machine: Any) -> None:
    run_state_machine_as_test(machine, settings=FEW)


@pytest.mark.parametrize("seed", [*BUGS, a_commit_moves_nothing], ids=str)
def test_each_bug_is_seen(seed: Bug) -> None:
    with seeded(seed), pytest.raises(AssertionError):
        two_trees_are_committed()


def test_two_trees_one_after_the_other() -> None:
    two_trees_are_committed()


def two_trees_are_committed() -> None:
    run = AttendingTrees()
    run.cache.on_commit(run.moved)
    run.attend([*range(7)], range(7))
    for first, (base, chain) in zip((100, 110), ((7, [0, 2]), (9, [0, 1, 3])), strict=True):
        run.cache.propose([-1, 0, 0, 1])
        run.attend([base, base + 1, base + 1, base + 2], range(first, first + 4))
        run.cache.commit(chain)
    run.attend([12, 13], [200, 201])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_result_has_the_dtype_that_the_node_says(dtype: torch.dtype) -> None:
    stands_for_the_node(dtype)


def stands_for_the_node(dtype: torch.dtype) -> None:
    q, k, v = (one.to(torch.float32) for one in tensors([1, 2]))
    node = (torch.arange(2), 0, SCALE, dtype)
    with room_for(4):
        eager = update_and_attend(q, k, v, *node)
    traced = update_and_attend(q.to("meta"), k.to("meta"), v.to("meta"), *node)

    assert eager.dtype == traced.dtype == dtype
    assert eager.shape == traced.shape == (1, HEADS, 2, DIM)
    # The first token sees itself alone.
    assert torch.equal(eager[0, :, 0], v[0, :, 0].repeat_interleave(2, 0).to(dtype))


@contextmanager
def traced_as_queries() -> Iterator[None]:
    """The fake kernel gives the queries' dtype."""
    update_and_attend.register_fake(lambda q, *_: torch.empty_like(q))
    try:
        yield
    finally:
        update_and_attend.register_fake(traced)


def test_a_fake_that_forgets_the_dtype_is_seen() -> None:
    with traced_as_queries(), pytest.raises(AssertionError):
        stands_for_the_node(torch.float16)

    stands_for_the_node(torch.float16)


def test_torch_finds_nothing_wrong_with_the_op() -> None:
    given = [one.to(torch.float32) for one in tensors([1, 2, 3])]
    node = (torch.arange(3), 0, SCALE, torch.float16)

    with room_for(4):
        found = torch.library.opcheck(update_and_attend, (*given, *node))

    assert set(found.values()) == {"SUCCESS"}


def test_positions_may_stand_in_a_column() -> None:
    with room_for(4):
        row = asked([1, 2], [0, 1])
    with room_for(4):
        column = update_and_attend(
            *tensors([1, 2]), torch.tensor([[0], [1]]), 0, SCALE, torch.float64
        )

    assert torch.equal(row, column)


def test_without_a_cache_it_says_how_to_have_one() -> None:
    with pytest.raises(InvalidStep, match=r"Loaded\(program, session\.key\)"):
        asked([1], [0])


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((2, HEADS, 1, DIM),) * 3, r"\[1, heads, 1, dim\] where 1 positions.*\(2, 4, 1, 32\)"),
        (((1, HEADS, 2, DIM),) * 3, r"\[1, heads, 1, dim\]"),
        (((1, HEADS, 1, DIM), (1, 3, 1, DIM), (1, 3, 1, DIM)), "heads divide"),
        (((1, HEADS, 1, DIM), (1, KV_HEADS, 1, DIM), (1, KV_HEADS, 1, 8)), "one shape"),
        (((1, HEADS, 1, DIM), (1, KV_HEADS, 1, 8), (1, KV_HEADS, 1, 8)), "dim is the same"),
    ],
)
def test_what_does_not_fit_together_is_refused(shapes: Any, message: str) -> None:
    cache = ContiguousBookkeeping(4)

    with answering(Cells(cache)), pytest.raises(InvalidStep, match=message):
        update_and_attend(
            *(torch.zeros(shape) for shape in shapes), torch.tensor([0]), 0, SCALE, torch.float32
        )

    assert cache.length == 0


def test_a_step_without_room_is_refused() -> None:
    with room_for(1), pytest.raises(CacheFull, match="needs 2"):
        asked([1, 2], [0, 1])
