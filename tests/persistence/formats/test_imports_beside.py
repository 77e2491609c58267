"""What goes on while an agent is imported: whoever looks at the agents does not wait for it."""

import threading
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from makers import OpenSystem

from kvactors.actors import AgentExists, AgentNotStored, AgentSystem, BlockingCall, Sampling

WAIT = 60


@pytest.fixture
def system(open_system: OpenSystem, tmp_path: Path) -> AgentSystem:
    """With ann, who stands in a file too."""
    system = open_system()
    system.spawn("ann").ask([1] * 10, sampling=Sampling(max_tokens=4)).get(timeout=WAIT)
    system.export_agent("ann", tmp_path / "ann.kva")
    return system


def on_a_thread(look: Callable[[], Any]) -> Any:
    """What comes of it, or the error; raises Empty if that takes long."""
    came = SimpleQueue[Any]()

    def run() -> None:
        try:
            came.put(look())
        except (AgentExists, AgentNotStored) as error:
            came.put(type(error))

    threading.Thread(target=run, daemon=True).start()
    return came.get(timeout=5)


def test_who_watches_an_import_may_look_at_the_agents(system: AgentSystem, tmp_path: Path) -> None:
    seen = list[Any]()

    def look(_done: int, _steps: int) -> None:
        seen.append(on_a_thread(system.agents))

    system.import_agent(tmp_path / "ann.kva", "ben", on_step=look)

    assert [[agent.agent_id for agent in agents] for agents in seen] == [["ann"]] * len(seen)
    assert seen
    assert [agent.agent_id for agent in system.agents()] == ["ann", "ben"]


def test_an_agent_that_is_just_imported_is_nobody_elses(
    system: AgentSystem, tmp_path: Path
) -> None:
    seen = list[Any]()

    def look(_done: int, _steps: int) -> None:
        seen.append(on_a_thread(lambda: system.spawn("ben")))
        seen.append(on_a_thread(lambda: system.forget("ben")))
        seen.append(on_a_thread(lambda: system.spawn("ben", from_="ann")))

    ben = system.import_agent(tmp_path / "ann.kva", "ben", on_step=look)

    assert set(seen) == {AgentExists, AgentNotStored}
    assert ben.transcript() == system.spawn("ann").transcript()


def test_an_import_that_spawns_as_it_goes_is_refused_and_does_not_hang(
    system: AgentSystem, tmp_path: Path
) -> None:
    def spawn(_done: int, _steps: int) -> None:
        # Not where it would hang for ever: whether that would wait for the import is asked first.
        on_a_thread(system.agents)
        system.spawn("eve")

    with pytest.raises(BlockingCall):
        system.import_agent(tmp_path / "ann.kva", "ben", on_step=spawn)

    assert [agent.agent_id for agent in system.agents()] == ["ann"]
