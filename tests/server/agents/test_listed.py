"""The list of agents, of which there may be very many."""

import threading
from typing import Any

import httpx
from seeded import bug, seeded

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.agents.owned import OwnedAgents
from kvactors.actors.frontends.server.web.serve import serve
from kvactors.actors.testing import FaultyModel


def test_no_more_agents_are_shown_than_are_listed_and_beside_the_streams() -> None:
    threads = list[str]()

    @bug(OwnedAgents, "shown")
    def noted(true: Any) -> Any:
        def shown(owned: OwnedAgents, agent_id: str) -> Any:
            threads.append(threading.current_thread().name)
            return true(owned, agent_id)

        return shown

    with AgentSystem(FaultyModel(), store=False) as system, serve(system, port=0) as server:
        for name in ("ann", "bob", "cid", "dan", "eve"):
            system.spawn(name)
        with seeded(noted):
            answer = httpx.get(f"{server.url}/agents?limit=2").json()

    assert [view["id"] for view in answer["agents"]] == ["ann", "bob"]
    assert (answer["total"], answer["tiers"]) == (5, {"cold": 5})
    assert len(threads) == 2
    assert "kvactors-server" not in threads
