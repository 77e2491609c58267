"""How rows go from a prefill to the decoding ones: uncopied where it can be, and never late."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from makers import LoadGrid, MakeEngine, prompt_of

from kvactors.core.arena.arena import Arena
from kvactors.core.arena.pieces import Piece
from kvactors.core.arena.wire import to_raw
from kvactors.core.engine.runner import SPARE_TOKENS, DecodeBatch, PrefillBatch, new_arena
from kvactors.core.model.load import LoadedModel, load_model
from kvactors.core.model.options import ModelOptions
from kvactors.core.schedule.events import Tokens
from kvactors.core.schedule.sampling import Sampling
from kvactors.core.testing.engines import make_request, run_engine
from kvactors.core.testing.families import build
from kvactors.core.testing.models import PlainTokenizer


def filled(loaded: LoadedModel, length: int) -> Arena:
    """An arena with one row of this length."""
    arena = new_arena(loaded)
    arena.add_row(0, length)
    arena.forward(loaded.model, mx.array([prompt_of(length)]))
    arena.evaluate()
    return arena


def logits(loaded: LoadedModel, arena: Arena, token: int) -> list[np.ndarray]:
    rows = len(arena)
    return list(np.array(arena.forward(loaded.model, mx.array([[token]] * rows))[:, -1]))


# -- a row that is taken -------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, None])
def test_a_row_that_gets_a_slab_of_its_own_is_not_copied(
    load_grid: LoadGrid, bits: int | None
) -> None:
    loaded = load_grid(bits)
    source, target = filled(loaded, 300), new_arena(loaded)
    mx.synchronize()
    before, needed = mx.get_active_memory(), target.take_bytes(source, 0)

    target.take(source, 0)
    target.evaluate()

    assert (needed, mx.get_active_memory()) == (0, before)
    assert target.table.lengths == [300]


def most_beside(work: Callable[[], object]) -> int:
    """Bytes that are there at most while this is done, beside those that were."""
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    work()
    mx.synchronize()
    return int(mx.get_peak_memory()) - before


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "qwen3_next"])
def test_what_leaves_a_row_and_what_enters_one_is_copied_once(family: str) -> None:
    loaded = load_model(lambda: (build(family), PlainTokenizer()), ModelOptions(name=family))
    source, held, left = new_arena(loaded), list[Arena](), list[Piece]()
    source.add_row(0, 700)
    for tokens in (250, 250, 200):
        mx.eval(source.forward(loaded.model, mx.array([prompt_of(tokens)])))
        source.evaluate()

    def enter() -> None:
        arena = new_arena(loaded)
        arena.table.lean = True
        arena.add_row(700, 700)
        arena.load(0, left[0])
        held.append(arena)

    # What another thread frees late is not there each time, as what is copied twice is.
    leaving = min(most_beside(lambda: left.append(source.export(0, 0, 700))) for _ in range(3))
    entering = min(most_beside(enter) for _ in range(3))

    print(f"{leaving / left[0].nbytes:.2f} of a piece, {entering / held[0].nbytes:.2f} of a row")
    assert leaving / left[0].nbytes < 1.25
    assert entering / held[0].nbytes < 1.4


@pytest.mark.parametrize("bits", [4, None])
def test_both_arenas_go_on_by_themselves(load_grid: LoadGrid, bits: int | None) -> None:
    loaded = load_grid(bits)
    source, target = filled(loaded, 300), new_arena(loaded)
    target.take(source, 0)

    there = [logits(loaded, target, token) for token in (5, 6)]
    here = [logits(loaded, source, token) for token in (9, 6)]

    apart = filled(loaded, 300)
    assert np.array_equal(here, [logits(loaded, apart, token) for token in (9, 6)])
    apart.cut(0, 300)
    assert np.array_equal(there, [logits(loaded, apart, token) for token in (5, 6)])
    assert not np.array_equal(here, there)


def test_a_row_among_others_is_copied_and_its_neighbours_stay(load_grid: LoadGrid) -> None:
    loaded = load_grid()
    prefill = PrefillBatch(loaded)
    requests = [make_request(f"{i}", [], prompt_of(9 + i, i), Sampling()) for i in range(3)]
    for request in requests:
        prefill.add(request, ())
    target = new_arena(loaded)

    assert len(prefill.arena.table.slabs) == 1
    assert target.take_bytes(prefill.arena, 1) > 0
    target.take(prefill.arena, 1)
    assert [len(prefill.arena), len(target)] == [3, 1]


def test_slots_of_rows_that_left_are_not_taken_over(load_grid: LoadGrid) -> None:
    loaded = load_grid()
    prefill = PrefillBatch(loaded)
    requests = [make_request(f"{i}", [], prompt_of(30, i), Sampling()) for i in range(4)]
    for request in requests:
        prefill.add(request, ())
    for request in requests[:3]:
        prefill.remove(request)
    target = new_arena(loaded)

    target.take(prefill.arena, 0)

    assert target.nbytes * 4 == prefill.arena.nbytes


# -- room to decode ------------------------------------------------------------------------


@pytest.mark.parametrize(("most", "room"), [(1, 64), (90, 128), (10_000, 320)])
def test_a_row_has_room_for_its_first_tokens(load_grid: LoadGrid, most: int, room: int) -> None:
    prefill = PrefillBatch(load_grid(), spare=True)

    prefill.add(make_request("a", [], prompt_of(31), Sampling(max_tokens=most)), ())

    assert prefill.arena.table.slabs[0].capacity == room


def test_room_to_decode_does_not_part_rows_of_one_length(load_grid: LoadGrid) -> None:
    """What is spare is not read: it once made new slabs, and a step launches by slab."""
    prefill = PrefillBatch(load_grid(), spare=True)
    for index in range(12):
        request = make_request(f"{index}", [], prompt_of(40, index), Sampling(max_tokens=256))
        prefill.add(request, ())

    assert [len(slab.rows) for slab in prefill.arena.table.slabs] == [12]


def test_room_to_decode_is_given_only_where_it_fits(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    engine = make_engine(load_grid())
    memory, request = engine.memory, make_request("a", [], prompt_of(31), Sampling())
    request.form = engine.loaded.form
    spare = engine.loaded.form.bytes_of(SPARE_TOKENS)
    memory.expected = 1 << 20

    for room, given in ((spare + memory.expected, True), (spare + memory.expected - 1, False)):
        # The rest of the budget waits to be written.
        memory.backlog += memory.room - room
        assert engine.execution.preemption.can_spare([request]) == given


# -- tokens on time ------------------------------------------------------------------------


class Launches:
    """An engine whose model notes the agents of each decode step that is launched."""

    def __init__(self, make_engine: MakeEngine, loaded: LoadedModel) -> None:
        self.agents: list[list[str]] = []
        forms = [replace(form, model=partial(self._noted, form.model)) for form in loaded.forms]
        self._decoding: Callable[[], list[DecodeBatch]] = list
        self.engine = make_engine(replace(forms[0], floats=forms[1] if forms[1:] else None))
        self._decoding = lambda: self.engine.memory.running.decoding

    def _noted(self, model: Any, tokens: mx.array, cache: Any) -> Any:
        for batch in self._decoding():
            if batch.arena.table is cache[0].table:
                self.agents.append([request.agent_id for request in batch.requests])
        return model(tokens, cache=cache)


def test_after_a_chunk_the_token_in_flight_does_not_wait_for_another_step(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    launches = Launches(make_engine, load_grid())
    engine = launches.engine
    decoder = make_request("decoder", [], prompt_of(8), Sampling(max_tokens=200))
    decoder.stream = True
    engine.submit(decoder)
    while not decoder.generated:
        engine.step()
    engine.submit(make_request("reader", [], prompt_of(700), Sampling(max_tokens=1)))
    told: list[tuple[int, int]] = []
    prefills = engine.memory.running.prefills
    while not told or any(request.agent_id == "reader" for request in prefills):
        before = len(launches.agents)
        tokens = [event for event in engine.step() if isinstance(event, Tokens)]
        told.append((len(tokens), len(launches.agents) - before))

    # A chunk's tick passes one token on and launches nothing; another launches the next step.
    assert (1, 0) in told
    assert (0, 1) in told


def test_a_long_row_with_its_last_token_in_flight_is_not_fed_once_more(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    loaded = load_grid()
    loaded = replace(loaded, policy=replace(loaded.policy, launch_tokens=128))
    long = 4 * loaded.policy.launch_tokens + 100
    for length, surplus in ((long, 0), (50, 1)):
        launches = Launches(make_engine, loaded)
        ends = make_request("ends", [], prompt_of(length), Sampling(max_tokens=3))
        stays = make_request("stays", [], prompt_of(20), Sampling(max_tokens=300))

        run_engine(launches.engine, [(0, ends), (0, stays)])

        assert sum("ends" in step for step in launches.agents) == 3 + surplus


def test_batches_of_both_forms_get_a_token_for_each_chunk(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    """One launched while the other was only read, and they took turns from then on."""
    launches = Launches(make_engine, load_grid(float_tokens=60))
    engine = launches.engine
    decoders = [
        make_request(name, [], prompt_of(length), Sampling(max_tokens=400))
        for name, length in (("float", 8), ("bits", 90))
    ]
    for request in decoders:
        engine.submit(request)
        while not request.generated:
            engine.step()
    reader = make_request("reader", [], prompt_of(900), Sampling(max_tokens=1))
    engine.submit(reader)
    launches.agents.clear()
    while reader.remaining or not launches.agents:
        engine.step()

    steps = [name for step in launches.agents for name in step]
    assert abs(steps.count("float") - steps.count("bits")) <= 1


def test_a_batch_whose_rows_all_ended_is_idle_again(
    load_grid: LoadGrid, make_engine: MakeEngine
) -> None:
    """The step that ran ahead of a stop token is nobody's: the next row may be adopted at once."""
    engine = make_engine(load_grid())
    request = make_request("a", [], prompt_of(20), Sampling(max_tokens=8))
    answer = run_engine(engine, [(0, request)])["a"].request.generated
    stopped = make_request("b", [], prompt_of(20), Sampling(max_tokens=8), stop_tokens=[answer[2]])

    end = run_engine(engine, [(0, stopped)])["b"]

    assert end.reason == "stop"
    assert engine.memory.running.common[0].idle


# -- bytes for the store -------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, None])
def test_bytes_for_the_store_are_a_view_that_later_steps_do_not_change(
    load_grid: LoadGrid, bits: int | None
) -> None:
    loaded = load_grid(bits)
    arena = filled(loaded, 300)
    piece = arena.export(0, 0, 256)
    before = mx.get_active_memory()

    tensors = to_raw(piece)
    copies = [bytes(data) for *_, data in tensors]
    del piece
    logits(loaded, arena, 7)
    arena.cut(0, 0)
    arena.forward(loaded.model, mx.array([prompt_of(290, 5)]))
    arena.evaluate()

    assert all(isinstance(data, memoryview) for *_, data in tensors)
    assert [bytes(data) for *_, data in tensors] == copies
    arena.leave(0)
    held = mx.get_active_memory()
    del tensors
    assert mx.get_active_memory() < held < before + sum(map(len, copies))
