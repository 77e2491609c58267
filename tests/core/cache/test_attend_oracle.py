"""The oracle of `update_and_attend` has no oracle but sets: what a token sees, weighed directly."""

from typing import Any

import numpy as np
import pytest
from attended import SCALE, attended, numbers
from cache_machines import Sequences, Trees
from hypothesis import settings

from kvactors.core.cache.family.contiguous import ContiguousBookkeeping
from kvactors.core.testing.attend_oracle import AttendOracle

LAYERS = 2
FEW = settings(max_examples=25, stateful_step_count=20, deadline=None)


class Attends:
    """Tokens attend through the oracle, in all layers."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: Any
        self.oracle = AttendOracle(self.cache)
        self.known: list[dict[str, dict[int, np.ndarray]]] = [
            {"k": {}, "v": {}} for _ in range(LAYERS)
        ]

    def attend(self, positions: list[int], names: list[int], sees: list[set[int]]) -> None:
        for layer, known in enumerate(self.known):
            q, k, v = (numbers(what, names, layer) for what in "qkv")
            for index, name in enumerate(names):
                known["k"][name], known["v"][name] = k[0, :, index], v[0, :, index]

            found = self.oracle.update_and_attend(q, k, v, positions, layer, SCALE)

            expected = attended(q, known["k"], known["v"], sees)
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)

    def spoil(self, positions: list[int]) -> None:
        q, k, v = (1e9 * numbers(what, range(len(positions))) for what in "qkv")
        self.oracle.update_and_attend(q, k, v, positions, 0, SCALE)


class AttendingSequences(Attends, Sequences):
    pass


class AttendingTrees(Attends, Trees):
    def __init__(self) -> None:
        super().__init__()
        self.cache.on_commit(self.move)

    def moved(self, base: int, cells: Any) -> None:
        self.oracle.move(base, cells)


TestSequences = AttendingSequences.TestCase
TestSequences.settings = FEW
TestTrees = AttendingTrees.TestCase
TestTrees.settings = FEW


def test_a_single_sequence_attends_to_all_before() -> None:
    oracle = AttendOracle(ContiguousBookkeeping(16))
    q, k, v = (numbers(what, range(8)) for what in "qkv")
    keys, values = ({name: array[0, :, name] for name in range(8)} for array in (k, v))

    found = [
        oracle.update_and_attend(
            q[:, :, part], k[:, :, part], v[:, :, part], range(8)[part], 0, SCALE
        )
        for part in (slice(5), slice(5, 6), slice(6, 8))
    ]

    expected = attended(q, keys, values, [set(range(n + 1)) for n in range(8)])
    np.testing.assert_allclose(np.concatenate(found, axis=2), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_result_has_the_dtype_that_is_asked_for(dtype: Any) -> None:
    oracle = AttendOracle(ContiguousBookkeeping(4))
    q, k, v = (numbers(what, [1]) for what in "qkv")

    out = oracle.update_and_attend(q, k, v, [0], 0, SCALE, out_dtype=dtype)

    assert out.dtype == dtype
    np.testing.assert_array_equal(out, np.repeat(v, 2, axis=1).astype(dtype))
