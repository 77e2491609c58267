"""Every agent is known: spawned, forked, only stored, or with a ledger that cannot be read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from seeded import Bug, seeded

from kvactors.actors import AgentSystem, Sampling
from kvactors.actors.system.registry import AgentRegistry
from kvactors.core.engine.hot_cache import HotCaches
from kvactors.core.testing.models import grid
from kvactors.persistence.files.naming import encode_agent_id

SHORT = Sampling(max_tokens=4)


def test_agents_are_known_in_every_tier(tmp_path: Path) -> None:
    with AgentSystem(grid, store=tmp_path) as system:
        system.spawn("ann").ask("hello", sampling=SHORT).get()
        system.spawn("new")
        hot, new = system.known_agents()
    with AgentSystem(grid, store=tmp_path) as system:
        (warm,) = system.known_agents()
        system.spawn("bob", from_="ann").ask("again", sampling=SHORT).get()
        both = system.known_agents("ann", "bob", "nobody")
        view = system.spawn("bob").transcript()

    assert (hot.tier, new.tier, warm.tier) == ("hot", "cold", "warm")
    assert (new.turns, new.tokens, new.last_used) == (0, 0, None)
    assert (warm.turns, warm.tokens) == (hot.turns, hot.tokens) == (2, hot.memory_tokens + 1)
    assert warm.disk_tokens == hot.memory_tokens
    assert warm.disk_bytes > 0 == warm.memory_bytes
    assert [state.agent_id for state in both] == ["ann", "bob"]
    assert (both[1].turns, both[1].tokens) == (len(view.turns), len(view.token_ids))


def test_a_ledger_is_read_again_once_it_has_changed(tmp_path: Path) -> None:
    with AgentSystem(grid, store=tmp_path) as system:
        agent = system.spawn("ann")
        for prompt in ("one", "two"):
            agent.ask(prompt, sampling=SHORT).get().durable.get()
        agent.rewind(1).get().durable.get()
    with AgentSystem(grid, store=tmp_path) as system:
        before = system.known_agents()[0].turns
        system.spawn("ann").ask("three", sampling=SHORT).get().durable.get()
        after = system.known_agents()[0].turns

    assert (before, after) == (2, 4)


def noted(owner: type, name: str, looked: list[str]) -> Bug:
    """Notes what this `owner` is asked for by `name`: by ids, or "all"."""

    def wrong(true: Callable[..., Any]) -> Callable[..., Any]:
        def called(part: Any, *ids: str) -> Any:
            looked.extend(ids or ("all",))
            return true(part, *ids)

        return called

    return Bug(f"{name} is noted", owner, name, wrong)


def test_who_is_asked_for_is_alone_looked_at() -> None:
    looked = list[str]()
    caches, actors = noted(HotCaches, "get", looked), noted(AgentRegistry, "actors", looked)
    with AgentSystem(grid, store=False) as system:
        for name in ("ann", "bob"):
            system.spawn(name).ask("hello", sampling=SHORT).get()
        ann_before, _ = system.known_agents()
        system.wait_idle()
        with seeded(caches), seeded(actors):
            (ann,) = system.known_agents("ann", "nobody")

    assert ann == ann_before
    assert looked == ["ann", "nobody"]


def overwrite(ledger: Path) -> None:
    ledger.write_bytes(b"?" * ledger.stat().st_size)


def empty(ledger: Path) -> None:
    ledger.write_bytes(b"")


def delete(ledger: Path) -> None:
    ledger.unlink()


def delete_the_folder(ledger: Path) -> None:
    shutil.rmtree(ledger.parent)


def put_a_file_in_the_folders_place(ledger: Path) -> None:
    shutil.rmtree(ledger.parent)
    ledger.parent.write_bytes(b"")


@pytest.mark.parametrize(
    "damage", [overwrite, empty, delete, delete_the_folder, put_a_file_in_the_folders_place]
)
def test_a_ledger_that_cannot_be_read_hides_no_agent(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    with AgentSystem(grid, store=tmp_path) as system:
        for name in ("ann", "bob"):
            system.spawn(name).ask("hello", sampling=SHORT).get()
    damage(tmp_path / "agents" / encode_agent_id("ann") / "ledger.log")

    with AgentSystem(grid, store=tmp_path) as system:
        states = {state.agent_id: state for state in system.known_agents()}

    assert states.pop("bob").problem is None
    (damaged,) = states.values()
    assert damaged.problem
    assert damaged.turns == 0


def test_a_ledger_that_was_repaired_is_read_again(tmp_path: Path) -> None:
    with AgentSystem(grid, store=tmp_path) as system:
        system.spawn("ann").ask("hello", sampling=SHORT).get()
    ledger = tmp_path / "agents" / encode_agent_id("ann") / "ledger.log"
    sound = ledger.read_bytes()
    overwrite(ledger)

    with AgentSystem(grid, store=tmp_path) as system:
        (damaged,) = system.known_agents()
        ledger.write_bytes(sound)
        (ann,) = system.known_agents()

    assert damaged.problem
    assert (ann.agent_id, ann.problem) == ("ann", None)


def test_without_a_store_those_in_memory_are_known() -> None:
    with AgentSystem(grid, store=False) as system:
        system.spawn("ann").ask("hello", sampling=SHORT).get()
        (ann,) = system.known_agents()

    assert (ann.tier, ann.disk_tokens, ann.last_used) == ("hot", 0, None)
