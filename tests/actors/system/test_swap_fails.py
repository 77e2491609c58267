"""Swaps that fail or are cut short: the old model goes on, or everybody is told."""

from copy import copy
from pathlib import Path
from threading import Event
from typing import Any

import mlx.core as mx
import pytest
from makers import OpenSystem
from swap_models import (
    ANSWER,
    FIRST,
    SECOND,
    STORY,
    WAIT,
    Background,
    Grid,
    Held,
    ask,
    computed_alone,
    swapping,
)

from kvactors.actors import (
    AgentSystem,
    BlockingCall,
    EngineDied,
    SaveFailed,
    SwapFailed,
    SystemStopped,
)
from kvactors.actors.runtime.blocking import mark_pool_thread
from kvactors.actors.runtime.futures import WaitTimeout
from kvactors.actors.testing import FailingFiles
from kvactors.actors.turns.messages_store import WithStore
from kvactors.core.errors import (
    InvalidConfig,
    InvalidInput,
    KvactorsError,
    ModelNotFound,
    TemplateError,
)
from kvactors.core.testing.models import PlainTokenizer, snap_to_grid, tiny_model

# -- when it fails -------------------------------------------------------------------------


def test_a_model_that_is_not_there_is_refused_before_the_old_one_goes(
    open_grid: OpenSystem, tmp_path: Path
) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice, STORY)

    with pytest.raises(SwapFailed, match=f"goes on with {FIRST.name}") as failure:
        system.swap_model(tmp_path / "nowhere")

    assert isinstance(failure.value.__cause__, ModelNotFound)
    assert ask(alice).cache == "hot"


def test_a_name_that_is_no_path_is_refused_before_the_old_one_goes(open_grid: OpenSystem) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice, STORY)

    with pytest.raises(SwapFailed, match=f"goes on with {FIRST.name}") as failure:
        system.swap_model("./" + "x" * 300)

    assert isinstance(failure.value.__cause__, ModelNotFound)
    assert ask(alice).cache == "hot"
    assert system.health().rebuilds == 0


def test_a_model_in_half_precision_is_known_when_it_is_given_again(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    model = tiny_model()
    model.set_dtype(mx.float16)
    mx.eval(model.parameters())

    def same() -> Any:
        return model, PlainTokenizer()

    found = []
    for prompt in (STORY, "Hello"):
        system = open_system(same, store=tmp_path)
        found.append((system.info.fingerprint, ask(system.spawn("alice"), prompt).cache))
        system.stop()

    assert found[0][0] == found[1][0]
    assert [cache for _, cache in found] == ["cold", "warm"]


def test_a_model_that_was_rounded_meanwhile_is_another_one(open_system: OpenSystem) -> None:
    model, found = tiny_model(), []
    for dtype in ("auto", "float16", "float32"):
        system = open_system(lambda: (model, PlainTokenizer()), store=False, dtype=dtype)
        found.append(system.info.fingerprint)
        system.stop()

    assert len(set(found)) == 3


def test_an_agent_that_was_to_leave_takes_no_turn_in_the_middle_of_a_swap(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    disk, gate, waits = FailingFiles(name="append", path="*ledger.log"), Event(), Event()
    disk.armed = False
    system = open_system(store=tmp_path, disk=disk)
    alice = system.spawn("alice")
    ask(alice, [1, 2])
    disk.armed = True
    alice.ask([3], sampling=ANSWER).get(timeout=WAIT)
    persistence, agents = system.parts.lifecycle.persistence, system.parts.agents
    actor: Any = agents.actor("alice")

    def hold(_: Any) -> None:
        waits.set()
        gate.wait(WAIT)

    persistence.tell(WithStore(hold, "nobody"))
    assert waits.wait(WAIT)
    leaving = Background(lambda: system.deactivate("alice"))
    while actor.actor_inbox.open_to_prompts:
        gate.wait(0.01)
    agents.pause()
    later = alice.ask([4], sampling=ANSWER)
    gate.set()

    assert isinstance(leaving.end(), SaveFailed)
    with pytest.raises(WaitTimeout):
        later.get(timeout=0.3)
    agents.resume(system.info)
    assert later.get(timeout=WAIT).token_ids


def test_when_the_new_model_cannot_be_loaded_the_old_one_goes_on_warm(
    open_grid: OpenSystem,
) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice", "Be brief.")
    ask(alice, STORY)
    weights = mx.get_active_memory() - FIRST.memory[-1]

    def half() -> Any:
        model = tiny_model(vocab_size=4000)
        raise RuntimeError(f"out of luck with {model}")

    with pytest.raises(SwapFailed, match=r"half cannot be loaded .*RuntimeError: out of luck"):
        system.swap_model(half)

    assert FIRST.memory[-1] - FIRST.memory[-2] < 0.05 * weights
    assert system.info.name == FIRST.name
    reply = ask(alice)
    assert (reply.cache, reply.usage.retokenized_tokens) == ("warm", 0)
    assert computed_alone(system, alice, reply)
    system.swap_model(SECOND)
    assert ask(alice).cache == "cold"


def test_when_the_old_model_cannot_be_loaded_again_every_future_says_so(
    open_grid: OpenSystem, pauses: Any
) -> None:
    held = Held()

    def once() -> Any:
        if held.model is not None:
            raise OSError("unplugged")
        return held()

    def broken() -> Any:
        raise RuntimeError("broken")

    system = open_grid(once, prepare=pauses.hear)
    alice = system.spawn("alice")
    told = ask(alice, STORY)
    held.hold()
    running = alice.ask("Hello", sampling=ANSWER)
    assert held.model.reached.wait(WAIT)
    swap = swapping(system, broken)
    assert pauses.acquire(timeout=WAIT)
    waiting = alice.ask("world", sampling=ANSWER)
    held.gate.set()

    error = swap.end()

    assert isinstance(error, SwapFailed)
    assert "broken cannot be loaded, nor once again" in str(error)
    assert "OSError: unplugged" in str(error)
    assert running.get(timeout=WAIT).finish_reason == "length"
    with pytest.raises(EngineDied):
        waiting.get(timeout=WAIT)
    with pytest.raises(EngineDied):
        alice.ask("again")
    with pytest.raises((SwapFailed, EngineDied)):
        system.swap_model(SECOND)
    turns = alice.transcript().turns
    system.stop(timeout=WAIT)
    held.model = None
    restored = open_grid(once).spawn("alice")
    assert restored.transcript().turns == turns
    assert told.text == turns[1].text
    assert ask(restored).cache == "warm"


def test_an_agent_that_the_new_template_cannot_render_waits_for_the_next_model(
    open_grid: OpenSystem,
) -> None:
    def strict() -> Any:
        model, tokenizer = Grid("unigram")()
        tokenizer = copy(tokenizer)
        tokenizer.chat_template = (
            "{% for m in messages %}{% if m.role == 'critic' %}{{ raise_exception('no critics') }}"
            "{% endif %}{% endfor %}" + tokenizer.chat_template
        )
        return model, tokenizer

    system = open_grid(FIRST)
    alice, bob = system.spawn("alice"), system.spawn("bob")
    alice.observe("3 degrees", role="critic").get(timeout=WAIT)
    ask(bob)

    system.swap_model(strict)

    with pytest.raises(TemplateError, match="no critics"):
        ask(alice)
    assert ask(bob).cache == "cold"
    system.swap_model(FIRST)
    assert ask(alice).cache == "warm"


def test_what_cannot_be_a_swap_is_refused_and_changes_nothing(open_grid: OpenSystem) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice)

    for wrong, options in [(3, {}), (lambda: None, {}), (SECOND, {"kv_bits": 5})]:
        with pytest.raises(InvalidConfig):
            system.swap_model(wrong, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no parameter 'max_batch'"):
        system.swap_model(SECOND, max_batch=2)  # type: ignore[call-arg]
    with pytest.raises(SystemStopped):
        AgentSystem(FIRST, store=False).swap_model(SECOND)

    def on_a_pool_thread() -> None:
        mark_pool_thread(shared=True)
        system.swap_model(SECOND)

    assert isinstance(Background(on_a_pool_thread).end(), BlockingCall)
    assert system.info.name == FIRST.name
    assert ask(alice).cache == "hot"


def test_token_ids_beyond_the_new_models_embedding_end_in_an_error(
    open_grid: OpenSystem,
) -> None:
    def large() -> Any:
        return snap_to_grid(tiny_model(seed=3)), PlainTokenizer(128)

    def small() -> Any:
        return snap_to_grid(tiny_model(seed=3, vocab_size=96)), PlainTokenizer(128)

    system = open_grid(large)
    alice = system.spawn("alice")
    ask(alice, [100, 101])
    system.swap_model(small)

    with pytest.raises(KvactorsError, match="outside the vocabulary of the model, 0 <= id < 96"):
        ask(alice, [1])
