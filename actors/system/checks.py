"""What must hold of a system: nothing is leaked, and nobody waits in vain."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from kvactors.actors.agents.actor import AgentActor
from kvactors.actors.turns.messages_gpu import Check, ReadStats
from kvactors.actors.turns.outstanding import Outstanding

__all__ = ["check_system"]

# Seconds that the end of a turn takes at most to reach everybody.
SETTLED = 10.0
PAUSE = 0.005
# Looks at the least: on a machine that stands still, time passes and nothing happens.
LOOKS = 100


def check_system(
    ask_gpu: Callable[[Any], Any],
    check_behaviours: Callable[[], None],
    outstanding: Outstanding,
    agents: Sequence[AgentActor],
) -> None:
    """Prove the bookkeeping of a running system; AssertionError says what is wrong.

    At any time: blocks, slots and lengths add up, no turn whose asker has its answer is still
    waited for, no ended behaviour has a thread. When nothing is outstanding also: no turn is left
    in the engine or in an agent, nothing waits to be written, every lane is open.

    `ask_gpu` gives the GPU actor's answer, `check_behaviours` proves those of behaviours; `agents`
    are the actors of all agents.
    """
    ask_gpu(Check())
    check_behaviours()
    _require(lambda: {t.serial: "answered" for t in outstanding.turns() if t.reply.done})
    if outstanding.idle:
        _require(lambda: _left_in_engine(ask_gpu) if outstanding.idle else {})
        _require(lambda: _left_in_agents(agents) if outstanding.idle else {})


def _left_in_engine(ask_gpu: Callable[[Any], Any]) -> dict[str, int]:
    engine, _ = ask_gpu(ReadStats())
    names = ("waiting", "prefilling", "decoding", "backlog_bytes")
    return {name: engine[name] for name in names if engine[name]}


def _left_in_agents(agents: Sequence[AgentActor]) -> dict[str, str]:
    left = {}
    for agent in agents:
        inbox = agent.actor_inbox
        if not agent.idle or not inbox.open_to_prompts or inbox.prompts:
            left[agent.agent_id] = f"a turn, or {inbox.prompts} prompts that are not begun"
    return left


def _require(left: "Callable[[], dict[str, int] | dict[str, str] | dict[int, str]]") -> None:
    """Nothing is left, now or as soon as what has ended is known to everybody."""
    deadline, looks = time.monotonic() + SETTLED, 1
    while (found := left()) and (time.monotonic() < deadline or looks < LOOKS):
        time.sleep(PAUSE)
        looks += 1
    assert not found, f"nothing is outstanding, but there is left: {found}"
