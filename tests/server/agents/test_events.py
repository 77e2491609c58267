"""`/events`: how the system is, and what happens in it."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import httpx
import pytest
from seeded import bug, seeded

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.system.watching import Watching
from kvactors.actors.testing import FaultyModel

WAIT = 60
ANN, BEN = "a" * 20, "b" * 20


def told(lines: Iterator[str]) -> Iterator[tuple[str, Any]]:
    """The events of a stream."""
    name = ""
    for line in lines:
        name = line.removeprefix("event: ") if line.startswith("event: ") else name
        if line.startswith("data: "):
            yield name, json.loads(line[6:])


def test_events_tell_of_turns_and_of_the_system(server: Server) -> None:
    with httpx.Client(base_url=server.url, timeout=WAIT) as http:
        agent = http.post("/agents", json={}).json()["agent"]["id"]
        seen = dict[str, Any]()
        with http.stream("GET", "/events") as answer:
            events = told(answer.iter_lines())
            while "ended" not in seen or "snapshot" not in seen:
                name, seen[name] = next(events)
                if name == "snapshot" and "ended" not in seen:
                    asked = {"prompt": "The secret is 4711.", "max_tokens": 30}
                    assert http.post(f"/agents/{agent}/turns", json=asked).status_code == 200

    assert seen["snapshot"]["stats"]["budget_bytes"] > 0
    assert seen["ended"]["agent_id"] == agent
    assert "4711" not in json.dumps(seen)


@bug(Watching, "snapshot")
def it_cannot_be_said(_: Any) -> Any:
    return lambda watching: 1 // 0


@pytest.mark.parametrize("breaks", [False, True])
def test_a_reader_is_told_without_a_store_and_holds_up_no_end(*, breaks: bool) -> None:
    with (
        AgentSystem(FaultyModel(), store=False) as system,
        serve(system, port=0) as server,
        seeded(it_cannot_be_said) if breaks else nullcontext(),
        httpx.stream("GET", f"{server.url}/events", timeout=WAIT) as answer,
    ):
        events = told(answer.iter_lines())
        first = next(events, None)
        server.stop()
        names = [name for name, _ in events]

    if breaks:
        assert first is None
    else:
        assert first is not None
        assert first[0] == "snapshot"
        assert first[1]["stats"]["budget_bytes"] > 0
    assert set(names) <= {"snapshot"}


def takes_a_turn(server: Server, key: str, agent: str) -> None:
    bearer = {"authorization": f"Bearer {key}"}
    with httpx.Client(base_url=server.url, headers=bearer, timeout=WAIT) as http:
        assert http.post("/agents", json={"id": agent}).is_success
        asked = {"prompt": "hello", "max_tokens": 2}
        assert http.post(f"/agents/{agent}/turns", json=asked).is_success


def test_a_key_is_told_nothing_of_another_keys_agents_nor_a_sum_over_them() -> None:
    @bug(Watching, "snapshot")
    def every_agents_turn_runs(true: Any) -> Any:
        def snapshot(watching: Watching) -> Any:
            turns = [{"agent_id": agent.agent_id} for agent in system.agents()]
            return true(watching) | {"turns": turns}

        return snapshot

    with (
        AgentSystem(FaultyModel(), store=False) as system,
        serve(system, port=0, keys=lambda: (ANN, BEN)) as server,
    ):
        takes_a_turn(server, ANN, "of-ann")
        takes_a_turn(server, BEN, "of-ben")
        bearer = {"authorization": f"Bearer {BEN}"}
        with (
            seeded(every_agents_turn_runs),
            httpx.stream("GET", f"{server.url}/events", headers=bearer, timeout=WAIT) as answer,
        ):
            events = told(answer.iter_lines())
            seen = [next(events)]
            takes_a_turn(server, ANN, "and-of-ann")
            takes_a_turn(server, BEN, "and-of-ben")
            while seen[-1][0] != "ended":
                seen.append(next(events))

    name, snapshot = seen[0]
    assert name == "snapshot"
    assert snapshot["turns"] == [{"agent_id": "of-ben"}]
    assert snapshot["stats"] is None
    assert snapshot["agents"] is None
    assert snapshot["outstanding_turns"] is None
    assert seen[-1][1]["agent_id"] == "and-of-ben"
    assert "of-ann" not in json.dumps(seen)
