"""Agents that nobody comes back to, and what many share: it costs nobody else anything."""

import asyncio
import logging
import math
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from chats import WAIT, asked, post, url
from inside import system_of
from seeded import bug, seeded

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.server.answering import expiry
from kvactors.actors.frontends.server.answering.claims import Claims
from kvactors.actors.frontends.server.answering.expiry import expire, keep_expiring, rest
from kvactors.actors.frontends.server.identity.index import SOME, Index, Known, Place
from kvactors.actors.frontends.server.web.serve import Server, serve
from kvactors.actors.system.registry import AgentRegistry

START = b"start"


def test_expiry_goes_on_after_an_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fails = threading.Event()

    @bug(expiry, "files_of")
    def the_disk_fails_once(true: Any) -> Any:
        def once(*given: Any) -> Any:
            if not fails.is_set():
                fails.set()
                raise OSError("no such device")
            return true(*given)

        return once

    with (
        AgentSystem(store=tmp_path / "store", context=4096) as system,
        serve(system, index=tmp_path / "store/clients.db", port=0) as server,
    ):
        agent = post(server, asked("hello")).headers["x-kvactors-agent"]

        async def forgets() -> None:
            keeping = keep_expiring(server.service, tmp_path / "store", None, 1, None)
            task = asyncio.create_task(keeping)
            while any(known.agent_id == agent for known in system.known_agents()):
                assert not task.done()
                await asyncio.sleep(0.01)
            task.cancel()

        often = bug(expiry, "EVERY")(lambda _: 0.01)
        with seeded(the_disk_fails_once), seeded(often), caplog.at_level(logging.ERROR):
            asyncio.run(asyncio.wait_for(forgets(), WAIT))

    assert fails.is_set()
    assert "were not all forgotten" in caplog.text


def test_the_longest_unused_go_until_the_rest_takes_no_more_than_it_may(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with (
        AgentSystem(store=root, context=4096) as system,
        serve(system, index=root / "clients.db", port=0) as server,
    ):
        agents = [
            post(server, asked(f"{number}, hello " * 20)).headers["x-kvactors-agent"]
            for number in range(4)
        ]
        system.wait_idle()
        sizes = {agent: sum(expiry.files_of(root, agent).values()) for agent in agents}
        most = sizes[agents[2]] + sizes[agents[3]]

        gone = asyncio.run(expire(server.service, root, None, most))

    assert all(sizes.values())
    assert gone == agents[:2]


def two_agents(server: Server) -> tuple[str, str]:
    """Clients made both; the first was used two hours ago."""
    first, second = (
        post(server, asked(text)).headers["x-kvactors-agent"] for text in ("hello", "good day")
    )
    index = server.service.index.connection

    def age() -> None:
        with index:
            index.execute("update agents set used = used - 7200 where agent = ?", (first,))

    asyncio.run(server.service.claims.on_index(age))
    return first, second


def test_who_was_not_used_for_so_long_goes_and_nobody_else(server: Server) -> None:
    first, second = two_agents(server)

    assert asyncio.run(expire(server.service, None, 3 * 3600, None)) == []
    assert asyncio.run(expire(server.service, None, None, None)) == []
    assert asyncio.run(expire(server.service, None, 3600, None)) == [first]

    assert [agent.agent_id for agent in system_of(server).agents()] == [second]
    assert asyncio.run(server.service.claims.idle_agents(math.inf)) == [second]


@pytest.mark.parametrize("limits", [(3600.0, None), (None, 0)], ids=["age", "bytes"])
def test_who_is_asked_after_they_were_listed_stays(
    tmp_path: Path, limits: tuple[float | None, int | None]
) -> None:
    with (
        AgentSystem(store=tmp_path, context=4096) as system,
        serve(system, index=tmp_path / "clients.db", port=0) as server,
    ):
        first, second = two_agents(server)
        claims = server.service.claims

        @bug(Claims, "idle_agents")
        def asked_meanwhile(true: Any) -> Any:
            async def idle(_self: Claims, before: float) -> Any:
                listed = await true(claims, before)
                async with claims.hold(first):
                    pass
                return listed

            return idle

        with seeded(asked_meanwhile):
            gone = asyncio.run(expire(server.service, tmp_path, *limits))

        assert first not in gone
        assert system.find(first) is not None
        assert gone == ([second] if limits[1] == 0 else [])


def test_who_was_not_used_for_an_hour_leaves_memory_each_time(server: Server) -> None:
    first, _ = two_agents(server)
    left = list[str]()

    async def leaves_twice() -> None:
        loop, twice = asyncio.get_running_loop(), asyncio.Event()

        def deactivate(agent_id: str) -> None:
            left.append(agent_id)
            if len(left) == 2:
                loop.call_soon_threadsafe(twice.set)

        task = asyncio.create_task(keep_expiring(server.service, None, None, None, deactivate))
        await twice.wait()
        task.cancel()

    with seeded(bug(expiry, "EVERY")(lambda _: 0.01)):
        asyncio.run(asyncio.wait_for(leaves_twice(), WAIT))

    assert left[:2] == [first, first]


def test_who_is_not_asked_for_a_while_leaves_memory_and_comes_back_warm(tmp_path: Path) -> None:
    with (
        AgentSystem(store=tmp_path, context=4096) as system,
        serve(system, index=tmp_path / "clients.db", port=0) as server,
    ):
        first = post(server, asked("hello")).json()["choices"][0]["message"]
        post(server, asked("good day"), **{"X-Kvactors-Agent": "ann"})

        with seeded(bug(expiry, "RESTS")(lambda _: -1.0)):
            asyncio.run(rest(server.service, system.deactivate))

        # Whom clients name is left to them.
        assert [agent.agent_id for agent in system.agents()] == ["ann"]
        said = [*asked("hello")["messages"], first, {"role": "user", "content": "and now?"}]
        used = post(server, asked("", messages=said)).json()["usage"]
        assert used["prompt_tokens_details"]["cached_tokens"] > 0


def test_who_is_asked_through_agents_is_used_as_well(server: Server) -> None:
    first, second = (
        post(server, asked(text)).headers["x-kvactors-agent"] for text in ("hello", "good day")
    )
    turn = {"prompt": "and now?", "max_tokens": 2}

    @bug(Index, "touch")
    def the_disk_is_full(true: Any) -> Any:
        def touch(*given: Any) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        return touch

    assert asyncio.run(server.service.claims.idle_agents(math.inf)) == [first, second]
    with seeded(the_disk_is_full):
        answer = httpx.post(f"{server.url}/agents/{first}/turns", json=turn, timeout=WAIT)
    assert answer.status_code == 200
    assert asyncio.run(server.service.claims.idle_agents(math.inf)) == [first, second]
    httpx.post(f"{server.url}/agents/{first}/turns", json=turn, timeout=WAIT)
    assert asyncio.run(server.service.claims.idle_agents(math.inf)) == [second, first]


def test_forks_of_an_agent_by_its_name_hold_up_no_large_body(server: Server) -> None:
    assert post(server, asked("hello"), **{"X-Kvactors-Agent": "ann"}).status_code == 200
    forks, waiting, gate = 4 * ((os.cpu_count() or 1) + 4), list[str](), threading.Event()

    @bug(AgentRegistry, "spawn")
    def forks_wait(true: Any) -> Any:
        def spawn(self: AgentRegistry, agent_id: str, *given: Any, **options: Any) -> Any:
            if agent_id.startswith("f-"):
                waiting.append(agent_id)
                gate.wait(WAIT)
            return true(self, agent_id, *given, **options)

        return spawn

    async def fork_and_ask() -> None:
        async with httpx.AsyncClient(timeout=WAIT) as client:
            wanted = [{"id": f"f-{number}"} for number in range(forks)]
            running = [client.post(f"{server.url}/agents/ann/fork", json=body) for body in wanted]
            forking = asyncio.gather(*running)
            while len(waiting) < 6:
                await asyncio.sleep(0.01)
            large = asked("hello", metadata={"large": "x" * 300_000}, max_tokens=2)
            try:
                answer = await asyncio.wait_for(client.post(url(server), json=large), WAIT / 4)
            finally:
                gate.set()
            assert answer.status_code == 200
            assert {one.status_code for one in await forking} == {201}

    with seeded(forks_wait):
        asyncio.run(asyncio.wait_for(fork_and_ask(), WAIT))


def begun(agents: int, thread: str = "") -> Index:
    """An index of so many agents that begin alike, of one client's thread."""
    index = Index(None)
    for number in range(agents):
        known = Known(f"c-{number}", "", thread, "{}", "{}", named=False)
        index.begin(known)
        index.note(known, 0, [Place(START, known.agent_id, 0, "mark", "{}")])
    return index


def test_of_many_that_begin_alike_some_are_looked_at() -> None:
    def steps(agents: int) -> int:
        index, counted = begun(agents, "cache:same"), list[None]()
        index.connection.set_progress_handler(lambda: counted.append(None), 100)
        assert not any(index.shared([START], "", "{}", 0))
        assert len(index.beginnings(START, "{}")) == SOME
        assert index.beginnings(START, '{"run": ""}') == []
        index.connection.set_progress_handler(None, 0)
        assert len(index.thread("", "cache:same")) == SOME
        index.close()
        return len(counted)

    assert steps(3000) < 40 * steps(100)
