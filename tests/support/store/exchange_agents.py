"""Systems and agents of the tests that move agents to files and back."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvactors.actors import AgentSystem, ImportRejected, Sampling
from kvactors.actors.turns.messages_store import WithStore
from kvactors.core.cache.segment import Segment
from kvactors.core.testing.models import PlainTokenizer, snap_to_grid, tiny_model

__all__ = ["SHORT", "WAIT", "is_stored", "refused", "stored_kv", "system_with_alice", "tiny_llama"]

SHORT = Sampling(max_tokens=8)
WAIT = 60


def tiny_llama() -> tuple[Any, PlainTokenizer]:
    """A random llama on the grid; the system takes its name from this function."""
    return snap_to_grid(tiny_model(seed=3)), PlainTokenizer()


@contextmanager
def system_with_alice(store: Path) -> Iterator[AgentSystem]:
    """A running system whose alice was told something."""
    with AgentSystem(tiny_llama, store=store, attention="packed") as system:
        system.spawn("alice").ask("In the beginning. " * 17, sampling=SHORT).get(timeout=WAIT)
        yield system


def stored_kv(system: AgentSystem, agent_id: str) -> tuple[Segment, ...]:
    """An agent's KV as the store has it."""
    work = WithStore(lambda store: store.read_kv(agent_id, system.info.fingerprint))
    found: tuple[Segment, ...] = system.parts.lifecycle.ask(
        system.parts.lifecycle.persistence, work
    )
    return found


def is_stored(system: AgentSystem, agent_id: str) -> bool:
    """Whether the store knows an agent."""
    work = WithStore(lambda store: store.read_ledger(agent_id))
    lifecycle = system.parts.lifecycle
    return lifecycle.ask(lifecycle.persistence, work) is not None


def refused(system: AgentSystem, path: Path, **options: Any) -> ImportRejected:
    """The error of an import that must fail and store nothing."""
    with pytest.raises(ImportRejected) as caught:
        system.import_agent(path, "refused", **options)
    assert not is_stored(system, "refused")
    assert caught.value.field in str(caught.value)
    return caught.value
