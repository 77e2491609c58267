"""Floats on the packed path: sums that do not depend on the batch, in the room that codes take."""

from typing import Any

import mlx.core as mx
import pytest

from kvactors.core.attention.packed import score, weigh
from kvactors.core.cache.spec import Side
from kvactors.core.model.load import load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.model.workspace import WorkSpace
from kvactors.core.testing.models import PlainTokenizer, tiny_model

SIDE = Side(64, None, None)


@pytest.mark.parametrize(("keys", "queries"), [(4096, 3), (1000, 40), (33, 5)])
def test_each_query_is_what_it_is_alone(keys: int, queries: int) -> None:
    stored, asked, weights = (
        mx.random.normal((2, 3, rows, width), key=mx.random.key(seed))
        for seed, (rows, width) in enumerate([(keys, 64), (queries, 64), (queries, keys)])
    )

    scores, sums = (
        form(given, (stored,), SIDE, unpack=False)
        for form, given in ((score, asked), (weigh, weights))
    )

    for at in range(queries):
        alone: Any = asked[..., at : at + 1, :], weights[..., at : at + 1, :]
        assert mx.array_equal(
            scores[..., at : at + 1, :], score(alone[0], (stored,), SIDE, unpack=False)
        )
        assert mx.array_equal(
            sums[..., at : at + 1, :], weigh(alone[1], (stored,), SIDE, unpack=False)
        )


@pytest.mark.parametrize("options", [{"reproducible": True}, {"attention": "packed"}])
def test_a_chunk_in_float_needs_no_more_than_one_of_codes(options: dict[str, Any]) -> None:
    model = tiny_model(num_attention_heads=8, num_key_value_heads=4)

    def pair(bits: int | None) -> float:
        """Bytes for each pair of token and key."""
        given = ModelOptions(kv_bits=bits, name="m", **options)
        return WorkSpace.measure(load_model(lambda: (model, PlainTokenizer()), given)).pair

    assert pair(None) < 2 * pair(4)
