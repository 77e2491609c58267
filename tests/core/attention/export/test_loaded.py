"""Programs that meet their cache on a key, and what becomes of it."""

import gc
from typing import Any

import pytest
import torch

from kvactors.core.attention.export.op import update_and_attend
from kvactors.core.attention.export.session import (
    Loaded,
    make_decode_session,
    make_seq_session,
    make_tree_session,
)
from kvactors.core.cache.family.config import CacheConfig, ModelFacts
from kvactors.core.cache.family.faces import DecodeCache, SeqCache, TreeCache
from kvactors.core.cache.family.registry import registry
from kvactors.core.errors import CacheFull, FaceMismatch, InvalidConfig, InvalidStep

CONFIG = CacheConfig(ModelFacts(1, 1, 4), capacity=6, bits=None)


def program(tokens: Any, position: Any) -> Any:
    """The mean of all tokens that one sees: its keys are all alike."""
    x = tokens[None, None, :, None].expand(1, 1, -1, 4).double()
    out = update_and_attend(x * 0, x * 0, x, position, 0, 1.0, torch.float64)
    if 13 in tokens.tolist():
        raise RuntimeError("unlucky")
    return out[0, 0, :, 0]


def test_a_session_is_found_by_its_key_until_it_ends() -> None:
    with make_seq_session(CONFIG) as session:
        key = session.key
        assert registry.get(key, SeqCache) is session.cache
        loaded = Loaded(program, key)

    with pytest.raises(InvalidConfig, match=f"no cache has the key '{key}'"):
        Loaded(program, key)
    session.cache.begin_step([4])
    assert loaded.execute([5], [0]).tolist() == [5]


def test_a_session_that_nobody_holds_leaves_no_key() -> None:
    key = make_tree_session(CONFIG).key

    gc.collect()

    with pytest.raises(InvalidConfig, match=key):
        registry.get(key, TreeCache)


def test_each_factory_gives_its_face() -> None:
    made = [make(CONFIG) for make in (make_decode_session, make_seq_session, make_tree_session)]

    for session, face in zip(made, (DecodeCache, SeqCache, TreeCache), strict=True):
        assert isinstance(session.cache, face)
    with pytest.raises(FaceMismatch, match="lacks commit"):
        registry.get(made[1].key, TreeCache)


def test_programs_with_keys_of_their_own_do_not_meet() -> None:
    with make_decode_session(CONFIG) as one, make_decode_session(CONFIG) as other:
        mine, theirs = Loaded(program, one.key), Loaded(program, other.key)

        mine.execute([2, 4], [0, 1])
        theirs.execute([8, 8], [0, 1])

        assert mine.execute([3], [2]).tolist() == [3]
        assert theirs.execute([2], [2]).tolist() == [6]


def test_programs_with_one_key_share_its_keys_and_values() -> None:
    with make_tree_session(CONFIG) as session:
        first, second = Loaded(program, session.key), Loaded(program, session.key)
        session.cache.propose([-1, 0, 0])
        first.execute([2, 4, 6], session.cache.positions)
        session.cache.commit([0, 2])

        session.cache.propose([-1])

        assert second.execute([10], session.cache.positions).tolist() == [6]


def test_a_program_that_fails_leaves_the_cache_as_it_was() -> None:
    with make_seq_session(CONFIG) as session:
        loaded = Loaded(program, session.key)
        session.cache.begin_step([1, 1])
        loaded.execute([2, 4], [0, 1])
        session.cache.begin_step([1])

        with pytest.raises(RuntimeError, match="unlucky"):
            loaded.execute([13], [2])

        assert session.cache.seq_len(1) == 2
        # Whose the token is was said already.
        assert loaded.execute([6], [2]).tolist() == [4]


def test_what_is_rewound_is_forgotten() -> None:
    with make_decode_session(CONFIG) as session:
        loaded = Loaded(program, session.key)
        loaded.execute([1, 2, 3], range(3))
        session.cache.rewind(1)

        assert loaded.execute([5], [1]).tolist() == [3]


@pytest.mark.parametrize(
    ("tokens", "positions", "kind", "message"),
    [
        ([1, 2], [0], InvalidStep, "2 tokens was given 1 positions"),
        ([-1], [0], InvalidStep, "a token is a whole number from 0 on, not -1"),
        ([1], [3], InvalidStep, "is at position 0, not 3"),
        ([1] * 7, range(7), CacheFull, "needs 7 cells: 0 of 6 are held"),
    ],
)
def test_a_bad_step_is_refused_before_the_program_runs(
    tokens: list[int], positions: list[int], kind: type[Exception], message: str
) -> None:
    def never(*_given: Any) -> None:
        raise AssertionError("it ran")

    with make_decode_session(CONFIG) as session:
        with pytest.raises(kind, match=message):
            Loaded(never, session.key).execute(tokens, positions)
        assert session.cache.length == 0


def test_codes_are_refused() -> None:
    with pytest.raises(InvalidConfig, match=r"bits is 4: .* so it is None"):
        make_decode_session(CacheConfig(ModelFacts(1, 1, 64), capacity=6, bits=4))
