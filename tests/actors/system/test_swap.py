"""Another model under the same agents: what is kept, and what comes back warm."""

import threading
from functools import partial
from pathlib import Path
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
    Grid,
    ask,
    computed_alone,
)

from kvactors.actors import ContextExceeded
from kvactors.actors.system.export import export_stored
from kvactors.actors.testing import use_store
from kvactors.actors.turns.messages_gpu import SwapModel
from kvactors.actors.turns.messages_store import WithStore
from kvactors.persistence.errors import ExportRejected
from kvactors.persistence.store.store import Store

# -- there and back ------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False], ids=["with a store", "without"])
def test_agents_go_on_under_another_model_and_are_warm_when_the_first_is_back(
    open_grid: OpenSystem, kept: bool
) -> None:
    system = open_grid(FIRST, **({} if kept else {"store": False}))
    alice = system.spawn("alice", "Be brief.")
    ask(alice, STORY)
    told = alice.transcript()

    system.swap_model(SECOND)
    assert [turn.text for turn in alice.transcript().turns] == [turn.text for turn in told.turns]
    assert "Be brief." in alice.transcript().text
    retokenized = len(alice.transcript().token_ids)
    other = ask(alice, "be calm")
    assert (other.cache, other.usage.reused_tokens) == ("cold", 0)
    assert other.usage.retokenized_tokens == retokenized
    assert computed_alone(system, alice, other)
    assert ask(alice).cache == "hot"

    system.swap_model(FIRST)
    assert alice.transcript().token_ids[: len(told.token_ids)] == told.token_ids
    again = ask(alice, "world")
    assert again.cache == ("warm" if kept else "cold")
    assert again.usage.reused_tokens == (len(told.token_ids) - 1 if kept else 0)
    assert 0 < again.usage.retokenized_tokens < again.usage.prompt_tokens - len(told.token_ids)
    assert computed_alone(system, alice, again)
    assert system.spawn("alice") is alice


def test_one_tokenizer_under_two_models_keeps_every_token_and_shares_no_kv(
    open_grid: OpenSystem,
) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice, STORY)
    tokens = alice.transcript().token_ids

    system.swap_model(Grid("bytes", seed=9))

    assert alice.transcript().token_ids == tokens
    reply = ask(alice)
    assert (reply.cache, reply.usage.retokenized_tokens) == ("cold", 0)
    assert computed_alone(system, alice, reply)


@pytest.mark.parametrize("model", [FIRST, SECOND], ids=["first", "second"])
def test_after_a_restart_either_model_finds_its_kv(open_grid: OpenSystem, model: Grid) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice, STORY)
    system.swap_model(SECOND)
    ask(alice)
    if model is FIRST:
        system.swap_model(FIRST)
    turns = alice.transcript().turns
    system.stop(timeout=WAIT)

    again = open_grid(model)
    restored = again.spawn("alice")

    assert restored.transcript().turns == turns
    reply = ask(restored)
    assert reply.cache == "warm"
    assert computed_alone(again, restored, reply)


def test_forks_and_rewinds_after_a_swap(open_grid: OpenSystem) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice, STORY)
    ask(alice)
    system.swap_model(SECOND)

    bob = system.spawn("bob", from_="alice")
    assert bob.transcript() == alice.transcript()
    alice.rewind().get(timeout=WAIT)
    bob.rewind(to_token=50).get(timeout=WAIT)
    replies = {agent: ask(agent, "be calm") for agent in (alice, bob)}
    for agent, reply in replies.items():
        assert computed_alone(system, agent, reply)

    system.swap_model(FIRST)
    for agent in replies:
        reply = ask(agent, "world")
        assert reply.usage.retokenized_tokens > 0
        assert computed_alone(system, agent, reply)
    turns = [agent.transcript().turns for agent in replies]
    assert ask(alice).cache == "hot"
    assert alice.rewind().get(timeout=WAIT).turns == len(turns[0])
    system.stop(timeout=WAIT)
    again = open_grid(FIRST)
    assert [again.spawn(name).transcript().turns for name in ("alice", "bob")] == turns


def test_an_export_after_a_swap_is_of_the_model_that_is_loaded(
    open_grid: OpenSystem, tmp_path: Path
) -> None:
    system = open_grid(FIRST)
    alice = system.spawn("alice")
    ask(alice, STORY)
    system.swap_model(SECOND)
    ask(alice)

    system.export_agent("alice", tmp_path / "alice.q4", format="q4-flat")

    bob = system.import_agent(tmp_path / "alice.q4", "bob")
    assert bob.transcript().token_ids == alice.transcript().token_ids
    reply = ask(bob)
    assert reply.cache == "warm"
    assert computed_alone(system, bob, reply)
    # Without the model nobody knows its tokens of the other one's turns.
    fingerprint = system.info.fingerprint
    system.stop(timeout=WAIT)
    store = Store(tmp_path / "store")
    with pytest.raises(ExportRejected, match="several models"):
        export_stored(store, "alice", tmp_path / "a", "q4-flat", model="?", fingerprint=fingerprint)
    store.close()


def test_what_a_swap_does_not_name_stays_and_what_depends_on_the_model_is_found_anew(
    open_grid: OpenSystem,
) -> None:
    system = open_grid(FIRST, store=False, kv_bits=8, max_batch=3, memory_budget="40MB")
    ask(system.spawn("alice"), STORY)
    before = system.info

    system.swap_model(SECOND, context=64)

    info, stats = system.info, system.stats()
    assert (info.name, system.chat, system.spec) == (SECOND.name, info.chat, info.spec)
    assert info.spec.vocab_size != before.spec.vocab_size
    assert {layer.bits for layer in info.spec.layers} == {8}
    assert stats["budget_bytes"] == info.memory_budget == 40_000_000
    assert (stats["misses"], stats["hot_agents"], stats["hot_bytes"]) == (0, 0, 0)
    with pytest.raises(ContextExceeded, match="exceed the context of 64 tokens"):
        ask(system.spawn("alice"))
    system.swap_model(FIRST, kv_bits=4, context=None)
    assert {layer.bits for layer in system.spec.layers} == {4}
    assert system.spec.context == before.spec.context
    assert ask(system.spawn("alice")).cache == "cold"


@pytest.mark.parametrize(("template", "warned"), [("marks", 1), ("chatml", 0)])
def test_another_template_of_the_same_tokenizer_is_warned_of(
    open_grid: OpenSystem, caplog: pytest.LogCaptureFixture, template: str, warned: int
) -> None:
    system = open_grid(FIRST, store=False)
    ask(alice := system.spawn("alice"))
    told = alice.transcript().token_ids

    system.swap_model(Grid("bytes", template, seed=3))

    assert caplog.text.count("another chat template: what agents remember") == warned
    assert alice.transcript().token_ids == told


def test_the_old_models_memory_is_free_before_the_new_one_is_loaded(
    open_grid: OpenSystem,
) -> None:
    system = open_grid(FIRST)
    for number in range(4):
        ask(system.spawn(str(number)), STORY)
    weights = mx.get_active_memory() - FIRST.memory[-1]
    second = Grid("unigram")

    system.swap_model(second)

    assert second.memory[-1] - FIRST.memory[-1] < 0.05 * weights


def test_what_the_old_model_computed_is_written_before_it_goes(
    open_grid: OpenSystem,
) -> None:
    order, asked = list[str](), threading.Event()

    class Late(Store):
        def commit(self, *args: Any, **kwargs: Any) -> None:
            asked.wait(WAIT)
            super().commit(*args, **kwargs)
            order.append("saved")

    class Noted:
        """A reference of an actor, and what it is asked."""

        def __init__(self, actor: Any) -> None:
            self.actor = actor

        def __getattr__(self, name: str) -> Any:
            return getattr(self.actor, name)

        def ask(self, message: Any) -> Any:
            if isinstance(message, WithStore | SwapModel):
                asked.set()
            return self.actor.ask(message)

    def other() -> Any:
        order.append("loaded")
        return Grid("unigram")()

    system = open_grid(FIRST, prepare=partial(use_store, kind=Late))
    reply = system.spawn("alice").ask(STORY, sampling=ANSWER).get(timeout=WAIT)
    lifecycle = system.parts.lifecycle
    lifecycle.gpu, lifecycle.persistence = Noted(lifecycle.gpu), Noted(lifecycle.persistence)

    system.swap_model(other)

    assert order == ["saved", "loaded"]
    assert reply.cached.get(timeout=WAIT) is True
    assert system.stats()["backlog_bytes"] == 0
