"""The two processes of the demo: one tells and ends, the other restores and asks."""

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from kvactors.actors.frontends.demo.plan import SYSTEM_PROMPT, DemoAgent, plan_demo
from kvactors.actors.system.system import AgentSystem
from kvactors.actors.turns.reply import Reply
from kvactors.core import blas
from kvactors.core.schedule.sampling import Sampling
from kvactors.persistence.files.naming import encode_agent_id

__all__ = ["Shown", "ask", "tell"]

ANSWER = Sampling(max_tokens=32)
PATIENCE = 300.0

Shown = Callable[[str, int], AbstractContextManager[Callable[[], None]]]
"""Shows how far something of so many steps is; what it yields is called after each."""


def tell(
    count: int,
    store: Path,
    model: str,
    key: bytes | None,
    progress: Shown,
    trace: Path | None = None,
) -> int:
    """Each of `count` agents of a `store`, encrypted with `key` if there is one, is told its facts
    under a `model`, all agents at once, and all of it is saved; `progress` shows it, `trace` is a
    file for what was done. How many agents of an earlier demo were forgotten first."""
    plan = plan_demo(count)
    known = [agent for agent in plan if _is_stored(store, agent)]
    with AgentSystem(model, store=store, encryption_key=key) as system:
        for agent in known:
            system.forget(agent.agent_id)
        with _traced(system, trace):
            replies = [
                system.spawn(agent.agent_id, SYSTEM_PROMPT).ask(turn, sampling=ANSWER)
                for agent in plan
                for turn in agent.turns
            ]
            with progress("telling", len(replies)) as step:
                for future in replies:
                    future.get(timeout=PATIENCE).cached.get(timeout=PATIENCE)
                    step()
    return len(known)


def ask(
    count: int,
    store: Path,
    model: str,
    key: bytes | None,
    progress: Shown,
    trace: Path | None = None,
) -> str:
    """Each of `count` agents of a `store`, encrypted with `key` if there is one, is restored under
    a `model` and asked its question: a JSON list, one entry for each; `progress` shows it, `trace`
    is a file for what was done.

    Then the same again over the same ledgers without their KV: what a restart costs when the memory
    has to be computed anew. Only the first is traced.
    """
    plan = plan_demo(count)
    # The first process has given its advice, and two systems start here.
    logging.getLogger(blas.__name__).addFilter(lambda record: "OpenBLAS" not in record.getMessage())
    asked: list[list[Reply]] = []
    with tempfile.TemporaryDirectory(prefix="kvactors-cold-") as folder:
        bare = Path(folder)
        for agent in plan:
            name = encode_agent_id(agent.agent_id)
            shutil.copytree(store / "agents" / name, bare / "agents" / name)
        for what, root, traced in (("asking", store, trace), ("asking without KV", bare, None)):
            system = AgentSystem(model, store=root, encryption_key=key)
            with system, progress(what, len(plan)) as step, _traced(system, traced):
                asked.append(_ask_each(system, plan, step))
    return json.dumps([_entry(*row) for row in zip(plan, *asked, strict=True)])


def _ask_each(
    system: AgentSystem, plan: tuple[DemoAgent, ...], step: Callable[[], None]
) -> list[Reply]:
    """One after the other, so that each has the machine to itself while it is timed; `step` after
    each of the `plan`, asked of `system`."""
    replies = []
    for agent in plan:
        handle = system.spawn(agent.agent_id, SYSTEM_PROMPT)
        replies.append(handle.ask(agent.question, sampling=ANSWER).get(timeout=PATIENCE))
        step()
    system.wait_idle(PATIENCE)
    return replies


@contextmanager
def _traced(system: AgentSystem, trace: Path | None) -> Iterator[None]:
    if trace is None:
        yield
        return
    with system.trace(trace):
        yield


def _entry(agent: DemoAgent, warm: Reply, cold: Reply) -> dict[str, Any]:
    answer = warm.text.strip()
    return {
        "agent": agent.agent_id,
        "question": agent.question,
        "answer": answer,
        "expected": agent.expected,
        "right": answer == agent.expected,
        "cache": warm.cache,
        "reused_tokens": warm.usage.reused_tokens,
        "prefilled_tokens": warm.usage.prefilled_tokens,
        "ttft_cold_ms": round(1000 * cold.timing.first_token, 2),
        "ttft_warm_ms": round(1000 * warm.timing.first_token, 2),
    }


def _is_stored(store: Path, agent: DemoAgent) -> bool:
    return (store / "agents" / encode_agent_id(agent.agent_id)).is_dir()
