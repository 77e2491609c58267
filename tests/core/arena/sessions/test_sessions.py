"""Sessions of mlx-lm's models: what a token's logits are does not depend on what else is in the
cache, to the bit."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from alone import PROMPT, Alone, config, fed, open_as
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from makers import LoadGrid

from kvactors.core.arena.kv_layer import KVLayer
from kvactors.core.arena.layer_cache import LayerCache
from kvactors.core.arena.sessions.session import (
    Session,
    make_decode_session,
    make_seq_session,
    make_tree_session,
)
from kvactors.core.arena.wire import to_raw
from kvactors.core.cache.family.faces import SeqCache, TreeCache
from kvactors.core.cache.family.sequences import SeqBookkeeping
from kvactors.core.testing.models import Faulty

# The same examples each time. Where a sequence's cells do not stand in its order its sums have
# another one, and once in some thousand draws a last digit falls across a step of the grid.
FEW = settings(
    max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
MAKERS = [make_decode_session, make_seq_session, make_tree_session]


@pytest.fixture(params=["llama-4", "llama-8", "llama-None", "qwen3-4"])
def alone(request: pytest.FixtureRequest, load_grid: LoadGrid) -> Alone:
    kind, bits = request.param.split("-")
    return Alone(load_grid(None if bits == "None" else int(bits), kind))


def test_one_sequence_is_decoded_rewound_and_decoded_again(alone: Alone) -> None:
    with open_as(alone, make_decode_session) as session:
        prefill = session.step(PROMPT, range(7))
        alone.agrees(prefill, [PROMPT[: n + 1] for n in range(7)])
        alone.agrees(session.step([11], [7]), [[*PROMPT, 11]])
        session.cache.rewind(4)
        alone.agrees(session.step([6, 1], [4, 5]), [[*PROMPT[:4], 6], [*PROMPT[:4], 6, 1]])
        arena, _ = alone.filled([*PROMPT[:4], 6, 1])
        assert to_raw(session.row.arena.export(0, 0, 6)) == to_raw(arena.export(0, 0, 6))


@pytest.mark.slow
@FEW
@given(data=st.data())
def test_sequences_that_fork_and_leave_have_the_logits_of_each_alone(
    alone: Alone, data: st.DataObject
) -> None:
    texts: dict[int, list[int]] = {}
    token = st.integers(1, 60)
    with open_as(alone, make_seq_session, 40) as session:
        for _ in range(data.draw(st.integers(3, 9), "steps")):
            held = sorted(texts)
            verb = data.draw(st.sampled_from(["step", "step", "fork", "cut", "keep"]), "verb")
            if verb == "fork" and held:
                source, target = data.draw(st.sampled_from(held)), data.draw(st.integers(0, 9))
                length = data.draw(st.integers(1, len(texts[source])))
                session.cache.seq_rm(target) if target != source else None
                session.cache.seq_cp(source, target, 0, None if target == source else length)
                texts[target] = texts[source][: None if target == source else length]
            elif verb == "cut" and held:
                one = data.draw(st.sampled_from(held))
                length = data.draw(st.integers(0, len(texts[one])))
                session.cache.seq_rm(one, length)
                texts[one] = texts[one][:length]
            elif verb == "keep" and held:
                kept = data.draw(st.sampled_from(held))
                session.cache.seq_keep(kept)
                texts = {kept: texts[kept]}
            texts = {one: text for one, text in texts.items() if text}
            stepped(
                alone,
                session,
                texts,
                data.draw(
                    st.lists(st.tuples(st.integers(0, 9), token), min_size=1, max_size=6), "tokens"
                ),
            )


def stepped(
    alone: Alone,
    session: Session[SeqCache],
    texts: dict[int, list[int]],
    batch: list[tuple[int, int]],
) -> None:
    """One step of (sequence, token) pairs, each compared with its text alone, logits and bytes."""
    expected, positions = [], []
    if not session.cache.can_extend(len(batch)):
        return
    for sequence, token in batch:
        text = texts.setdefault(sequence, [])
        positions.append(len(text))
        text.append(token)
        expected.append(list(text))
    session.cache.begin_step([sequence for sequence, _ in batch])
    logits = session.step([token for _, token in batch], positions)
    alone.agrees(logits, expected)
    for sequence in {sequence for sequence, _ in batch}:
        owns_the_bytes(alone, session, sequence, texts[sequence])


def owns_the_bytes(
    alone: Alone, session: Session[SeqCache], sequence: int, text: list[int]
) -> None:
    """The cells of a sequence, wherever they are, hold what its text has alone."""
    assert isinstance(session.cache, SeqBookkeeping)
    cells = [c for c in range(session.cache.high_water) if sequence in session.cache.owners(c)]
    arena, _ = alone.filled(text)
    for mine, theirs in zip(session.row.arena.layers, arena.layers, strict=True):
        assert sorted(bytes_of(mine, cells)) == sorted(bytes_of(theirs, range(len(text))))


def bytes_of(layer: LayerCache, cells: Sequence[int]) -> list[bytes]:
    """What each of these cells holds, in all arrays."""
    assert isinstance(layer, KVLayer)
    arrays = [np.array(a) for a in layer.rows.pools[0].export(0, 0, max(cells) + 1).values()]
    return [b"".join(array[:, :, cell].tobytes() for array in arrays) for cell in cells]


@pytest.mark.slow
@FEW
@given(data=st.data())
def test_each_node_of_a_tree_has_the_logits_of_its_path_alone(
    alone: Alone, data: st.DataObject
) -> None:
    committed = list(PROMPT)
    with open_as(alone, make_tree_session, 60) as session:
        session.step(PROMPT, range(7))
        for _ in range(data.draw(st.integers(1, 4), "rounds")):
            paths: list[list[int]] = []
            parents: list[int] = []
            for _ in range(data.draw(st.integers(1, 3), "frontiers")):
                first = len(paths)
                for _ in range(data.draw(st.integers(1, 4), "nodes")):
                    parents.append(data.draw(st.integers(-1, len(paths) - 1), "parent"))
                    before = paths[parents[-1]] if parents[-1] >= 0 else []
                    paths.append([*before, data.draw(st.integers(1, 60), "token")])
                session.cache.propose(parents[first:])
                positions = [len(committed) + len(path) - 1 for path in paths[first:]]
                logits = session.step([path[-1] for path in paths[first:]], positions)
                alone.agrees(logits, [committed + path for path in paths[first:]])
            node = data.draw(st.integers(-1, len(paths) - 1), "accepted")
            chain: list[int] = []
            committed += paths[node] if node >= 0 else []
            while node >= 0:
                chain, node = [node, *chain], parents[node]
            session.cache.commit(chain)
            same_bytes(alone, session, committed)
        alone.agrees(session.step([33], [len(committed)]), [[*committed, 33]])


def same_bytes(alone: Alone, session: Session[TreeCache], text: list[int]) -> None:
    arena, _ = alone.filled(text)
    for mine, theirs in zip(session.row.arena.layers, arena.layers, strict=True):
        assert isinstance(mine, KVLayer)
        assert isinstance(theirs, KVLayer)
        ours = mine.rows.pools[0].export(0, 0, len(text))
        others = theirs.rows.pools[0].export(0, 0, len(text))
        assert all(bool(mx.array_equal(ours[name], others[name])) for name in ours)


def test_a_window_that_lost_its_beginning_goes_on(load_grid: LoadGrid) -> None:
    alone = Alone(load_grid(None))
    with open_as(alone, make_seq_session) as session:
        for start in (0, 40):
            session.cache.begin_step([1] * 40)
            session.step(PROMPT * 5 + PROMPT[:5], range(start, start + 40))
            if start == 0:
                session.cache.seq_rm(1, 0, 20)
        cells = session.row.arena.table.slabs[0].capacity
        assert session.cache.seq_len(1) == 60
        assert session.cache.can_extend(140)
        assert cells == 256


@pytest.mark.parametrize("maker", MAKERS)
def test_a_step_that_fails_leaves_the_cache_as_it_was(load_grid: LoadGrid, maker: Any) -> None:
    alone = Alone(load_grid(4))
    model = Faulty(alone.loaded.model)
    with maker(model, config(), attention="packed") as session:
        fed(session, PROMPT, range(7))
        model.arm(poison=50)
        with pytest.raises(RuntimeError, match="poisoned token 50"):
            fed(session, [12, 50], [7, 8])

        assert session.cache.can_extend(193)
        # What was declared stays so.
        alone.agrees(session.step([12, 13], [7, 8]), [[*PROMPT, 12], [*PROMPT, 12, 13]])
