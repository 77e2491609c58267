"""The end of the context: what an agent drops or sums up, for how long it goes on, and what of
it can be seen."""

import logging
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from makers import OpenSystem
from swap_models import ANSWER, WAIT, ask, computed_alone

from kvactors.actors import (
    Agent,
    AgentSystem,
    DropOldest,
    Summarize,
    TurnFailed,
    TurnTimeout,
)
from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.frontends.cli.store import show_transcript
from kvactors.actors.testing import use_actors
from kvactors.actors.turns.messages_agent import CancelTurn
from kvactors.core.conversation.turn import Turn
from kvactors.core.errors import ContextExceeded, InvalidConfig
from kvactors.core.testing.models import Faulty, PlainTokenizer, snap_to_grid, tiny_model
from kvactors.persistence.store.store import Store

CONTEXT = 400
PROMPT = "Sum up."


class Curt(nn.Module):  # type: ignore[misc]
    """Ends its answer behind every token, but for one in eight: that of "." is one."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self.args = model.args

    @property
    def layers(self) -> Any:
        return self.model.layers

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        logits = self.model(inputs, cache=cache)
        ends = (inputs % 8 != ord(".") % 8)[..., None] & (mx.arange(logits.shape[-1]) == 0)
        return mx.where(ends, 1e4, logits)


class Summing:
    """A grid model that answers curtly, and what it is told to do wrong."""

    name = "summing"

    def __init__(self) -> None:
        self.model: Any = None

    def __call__(self) -> tuple[Any, PlainTokenizer]:
        self.model = Faulty(Curt(snap_to_grid(tiny_model(seed=2))))
        return self.model, PlainTokenizer()


@pytest.fixture
def system(open_grid: OpenSystem) -> AgentSystem:
    """With a short context."""
    return open_grid(Summing(), context=CONTEXT)


def fill_up(agent: Agent) -> tuple[Turn, ...]:
    """Tell it things until the next one does not fit; what it remembers then."""
    while len(agent.transcript().token_ids) + 50 + ANSWER.max_tokens <= CONTEXT:
        ask(agent, text(len(agent.transcript().turns)))
    return agent.transcript().turns


def text(number: int) -> str:
    return f"{number} is told, and that at some length."[:39].ljust(49, "-") + "."


def summaries(turns: Sequence[Turn]) -> list[Turn]:
    return [turn for turn in turns if turn.stands_for]


def test_an_agent_keeps_its_policy_until_another_is_given(system: AgentSystem) -> None:
    agent = system.spawn("alice", context_policy=DropOldest(keep_head=2))
    fill_up(agent)

    system.prefetch("alice")
    system.spawn("bob", from_="alice")
    assert system.spawn("alice") is agent

    ask(agent, text(99))
    assert agent.transcript().turns[-2].text == text(99)
    system.spawn("alice", context_policy="refuse")
    fill_up(agent)
    with pytest.raises(ContextExceeded):
        ask(agent, text(100))


# -- a long life ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [DropOldest(keep_head=2), Summarize(keep_head=2, max_tokens=40, prompt=PROMPT)],
    ids=["drop", "summarize"],
)
def test_an_agent_lives_through_ten_times_its_context_and_a_restart(
    open_grid: OpenSystem,
    tmp_path: Path,
    policy: DropOldest,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.ERROR, logger="kvactors")
    model = Summing()
    system = open_grid(model, context=CONTEXT)
    agent = system.spawn("alice", context_policy=policy)
    said, tokens, restarted = list[str](), 0, False
    while tokens < 10 * CONTEXT:
        if tokens > 5 * CONTEXT and not restarted:
            restarted, turns = True, agent.transcript().turns
            system.stop(timeout=WAIT)
            system = open_grid(model, context=CONTEXT)
            agent = system.spawn("alice", context_policy=policy)
            assert agent.transcript().turns == turns
            reply = ask(agent, text(len(said)))
            assert system.stats()["restores"] == 1
        else:
            reply = ask(agent, text(len(said)))
        said.append(text(len(said)))
        tokens += 50 + len(reply.token_ids)
        assert reply.usage.prompt_tokens + len(reply.token_ids) <= CONTEXT
        if len(said) % 10 == 0:
            assert computed_alone(system, agent, reply)

    turns = agent.transcript().turns
    assert turns[0].text == said[0]
    assert turns[-2].text == said[-1]
    summed_up = isinstance(policy, Summarize)
    assert [turn.stands_for > 0 for turn in turns].index(True) == 2 if summed_up else True
    assert sum(turn.stands_for or 1 for turn in turns) == 2 * len(said) or not summed_up
    system.stop(timeout=WAIT)

    store = Store(tmp_path / "store")
    records = store.read_ledger("alice") or ()
    store.close()
    entries = [entry for record in records for entry in record["turns"]]
    assert {entry["text"] for entry in entries} >= set(said)
    summed_up_in_all = sum("stands_for" in entry for entry in entries)
    assert (summed_up_in_all > 10) == summed_up
    show_transcript("alice", tmp_path / "store")
    shown = " ".join(capsys.readouterr().out.split())
    stands_for = 2 * len(said) - len(turns) + 1
    assert (f"a summary of {stands_for} turns)" in shown) == summed_up
    gone = 2 * len(said) + summed_up_in_all - len(turns)
    assert f"({gone} turns were taken back or left out)" in shown


def test_a_summary_stands_for_the_oldest_turns_and_is_nobodys_answer(
    system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    agent = system.spawn("alice", context_policy=Summarize(max_tokens=40, prompt=PROMPT))
    before = fill_up(agent)
    known = system.stats()["misses"]

    stream = agent.stream(text(100), sampling=ANSWER)
    shown = "".join(piece.text for piece in stream)
    reply = stream.reply

    turns = agent.transcript().turns
    (summary,) = summaries(turns)
    kept = len(turns) - 5
    assert turns[:2] == before[:2]
    assert summary is turns[2]
    assert summary.stands_for == len(before) - 2 - kept
    assert turns[3:-2] == before[len(before) - kept :]
    assert (turns[-2].text, turns[-1].token_ids) == (text(100), reply.token_ids)
    assert shown == reply.text
    assert (summary.role, summary.is_answer) == ("user", False)
    assert summary.text.startswith("Summary of our conversation so far: ")
    assert PROMPT not in agent.transcript().text
    assert (reply.cache, system.stats()["misses"]) == ("hot", known)
    assert computed_alone(system, agent, reply)
    assert system.stats()["backlog_bytes"] == 0
    assert not caplog.records


# -- when there is no summary --------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "poison", "reason"),
    [
        (Summarize(max_tokens=40, prompt="What?"), None, "the summary is empty"),
        (Summarize(max_tokens=1, prompt=PROMPT), None, "the summary had not ended after 1 tokens"),
        (Summarize(max_tokens=40, prompt="Sum ~."), ord("~"), "poisoned token"),
        (Summarize(max_tokens=300, prompt=PROMPT), None, "exceed the context of 400 tokens"),
        (Summarize(max_tokens=40, prompt="Sum up" * 60), None, "exceed the context of 400 tokens"),
    ],
    ids=["empty", "too long", "error", "no room to answer", "no room to ask"],
)
def test_without_a_summary_the_oldest_turns_are_dropped_with_a_warning(
    open_grid: OpenSystem,
    caplog: pytest.LogCaptureFixture,
    policy: Summarize,
    poison: int | None,
    reason: str,
) -> None:
    model = Summing()
    system = open_grid(model, context=CONTEXT)
    agent = system.spawn("alice", context_policy=policy)
    before = fill_up(agent)
    model.model.arm(poison=poison)

    reply = ask(agent, text(100))

    turns = agent.transcript().turns
    assert turns[:2] == before[:2]
    assert turns[2:-2] == before[len(before) - len(turns) + 4 :]
    assert not summaries(turns)
    (warning,) = caplog.messages
    assert warning.startswith("agent 'alice' drops its oldest turns without a summary: ")
    assert reason in warning
    assert computed_alone(system, agent, reply)


def test_a_summary_that_leaves_no_room_for_the_turn_is_left_out(
    system: AgentSystem, caplog: pytest.LogCaptureFixture
) -> None:
    agent = system.spawn("alice", context_policy=Summarize(max_tokens=40, prompt=PROMPT))
    turns = fill_up(agent)
    head = sum(len(turn.token_ids) for turn in turns[:2])

    agent.ask([1] * (CONTEXT - head - 20), sampling=ANSWER).get(timeout=WAIT)

    assert not summaries(agent.transcript().turns)
    assert "exceed the context of 400 tokens" in caplog.messages[0]
    with pytest.raises(ContextExceeded):
        agent.ask([1] * (CONTEXT - head), sampling=ANSWER).get(timeout=WAIT)


def test_for_what_can_never_fit_nothing_is_dropped(system: AgentSystem, caplog: Any) -> None:
    agent = system.spawn("alice", context_policy=Summarize(max_tokens=40, prompt=PROMPT))
    fill_up(agent)
    known = agent.transcript().token_ids

    with pytest.raises(ContextExceeded, match=f"{len(known)} tokens remembered"):
        agent.ask([1] * CONTEXT, sampling=ANSWER).get(timeout=WAIT)

    assert (agent.transcript().token_ids, caplog.messages) == (known, [])


@pytest.mark.parametrize("timeout", [None, 0.1], ids=["cancel", "timeout"])
def test_a_turn_that_ends_during_its_summary_leaves_no_trace(
    open_grid: OpenSystem, timeout: float | None
) -> None:
    told = threading.Event()

    class Noted(AgentActor):
        def on_receive(self, message: Any) -> None:
            super().on_receive(message)
            if isinstance(message, CancelTurn):
                told.set()

    model, gate = Summing(), threading.Event()
    system = open_grid(model, context=CONTEXT, prepare=partial(use_actors, agent=Noted))
    agent = system.spawn("alice", context_policy=Summarize(max_tokens=40, prompt=PROMPT))
    before = fill_up(agent)
    model.model.arm(hold=gate)

    future = agent.ask(text(100), sampling=ANSWER, timeout=timeout)
    assert model.model.reached.wait(WAIT)
    if timeout is None:
        agent.cancel()
    assert told.wait(WAIT)
    gate.set()

    with pytest.raises(TurnTimeout if timeout else TurnFailed, match=r"cancelled|longer than"):
        future.get(timeout=WAIT)
    assert agent.transcript().turns == before
    reply = ask(agent, text(100))
    assert len(summaries(agent.transcript().turns)) == 1
    assert computed_alone(system, agent, reply)


@pytest.mark.parametrize(
    "wrong", [{"max_tokens": 0}, {"prompt": ""}, {"keep_head": -1}, {"fill": 1.0}]
)
def test_what_cannot_be_a_policy_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        Summarize(**wrong)
