"""What agents have in common, over a restart: one file and one piece of memory, or nothing where
they are isolated."""

from pathlib import Path

import pytest
from makers import OpenSystem, prompt_of

from kvactors.actors import AgentSystem, Reply, Sampling
from kvactors.core.cache.blocks import BLOCK_TOKENS
from kvactors.core.testing.models import grid

WAIT = 60
ANSWER = Sampling(max_tokens=6)
BEGINNING, FORKS = 2000, 3
NAMES = ["parent", *(f"fork {number}" for number in range(FORKS))]


def raise_family(system: AgentSystem) -> None:
    """A parent that was told much, and its forks, all of them stored."""
    parent = system.spawn("parent")
    told = parent.ask(prompt_of(BEGINNING), sampling=ANSWER).get(timeout=WAIT)
    told.cached.get(timeout=WAIT)
    for name in NAMES[1:]:
        system.spawn(name, from_=parent)


def ask_all(system: AgentSystem) -> list[Reply]:
    """A short turn of each of them, all at once."""
    pending = [
        system.spawn(name).ask(prompt_of(9, seed), sampling=ANSWER)
        for seed, name in enumerate(NAMES, 1)
    ]
    return [future.get(timeout=WAIT) for future in pending]


@pytest.mark.parametrize("isolation", ["shared", "strict"])
def test_forks_hold_their_beginning_once_after_a_restart_too_unless_they_are_isolated(
    open_system: OpenSystem, tmp_path: Path, isolation: str
) -> None:
    first = open_system(grid, attention="packed", isolation=isolation)
    raise_family(first)
    first.stop(timeout=WAIT)
    linked = {path.stat().st_nlink for path in (tmp_path / "store").rglob("seg-0-*")}
    system = open_system(grid, attention="packed", isolation=isolation)

    replies = ask_all(system)

    token, hot = system.info.spec.bytes_per_token, system.stats()["hot_bytes"]
    # What closes no block is each one's own once it goes on.
    tails = len(NAMES) * (BLOCK_TOKENS + 20)
    assert linked == {len(NAMES) if isolation == "shared" else 1}
    assert [reply.cache for reply in replies] == ["warm"] * len(NAMES)
    assert [reply.usage.reused_tokens for reply in replies] == [BEGINNING + 5] * len(NAMES)
    if isolation == "shared":
        assert hot <= token * (BEGINNING + tails)
    else:
        assert hot >= token * BEGINNING * len(NAMES)


def test_isolated_forks_say_what_others_say(open_system: OpenSystem, tmp_path: Path) -> None:
    said = []
    for isolation in ("shared", "strict"):
        folder = tmp_path / isolation
        system = open_system(grid, attention="packed", isolation=isolation, store=folder)
        raise_family(system)
        system.forget("parent")
        system.spawn("parent")
        said.append([reply.token_ids for reply in ask_all(system)[1:]])

    assert said[0] == said[1]
