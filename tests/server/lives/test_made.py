"""Whom clients make is known before it is there, begins as others just do, and is gone for good."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from chats import WAIT, asked, post
from seeded import bug, seeded

from kvactors.actors import AgentSystem
from kvactors.actors.frontends.cli.care import remove_agent
from kvactors.actors.frontends.server.exchange.inquiry import Client, Inquiry, Message
from kvactors.actors.frontends.server.identity.index import Index, Place
from kvactors.actors.frontends.server.identity.plan import Plan
from kvactors.actors.frontends.server.identity.resolve import Resolver
from kvactors.actors.frontends.server.identity.rules import shipped_rules
from kvactors.actors.frontends.server.web.serve import serve
from kvactors.actors.system.registry import AgentRegistry
from kvactors.actors.system.roster import AgentState
from kvactors.actors.testing import FailingFiles, FaultyModel, use_disk

RULES = "You are a careful agent."


def test_a_crash_leaves_nobody_whom_neither_clients_nor_expiry_would_find(tmp_path: Path) -> None:
    index, made = tmp_path / "clients.db", list[tuple[str, int]]()

    @bug(AgentRegistry, "spawn")
    def looks(true: Any) -> Any:
        def spawn(self: AgentRegistry, agent_id: str, *given: Any, **options: Any) -> Any:
            with closing(sqlite3.connect(index)) as file:
                of = "select count(*) from agents where agent = ?"
                made.append((agent_id, file.execute(of, (agent_id,)).fetchone()[0]))
            return true(self, agent_id, *given, **options)

        return spawn

    with (
        AgentSystem(FaultyModel(), tmp_path) as system,
        serve(system, index=index, port=0, any_model=True) as server,
        seeded(looks),
    ):
        first = post(server, asked("hello"))
        said = [*asked("hello")["messages"], first.json()["choices"][0]["message"]]
        for more in ("one", "two"):
            post(server, asked("", messages=[*said, {"role": "user", "content": more}]))
        ann = httpx.post(f"{server.url}/agents", json={"id": "ann"}, timeout=WAIT)
        bob = {"id": "bob", "from": first.headers["x-kvactors-agent"]}
        assert httpx.post(f"{server.url}/agents", json=bob, timeout=WAIT).status_code == 201

    assert ann.status_code == 201
    assert {"ann", "bob"} < {agent for agent, _ in made}
    assert len({agent for agent, _ in made}) == 4
    assert all(known for _, known in made)


def test_a_fork_that_fails_takes_nobodys_place_in_the_index(tmp_path: Path) -> None:
    disk = FailingFiles(name="append", path="*ann*")
    disk.armed = False
    system = AgentSystem(FaultyModel(), tmp_path)
    use_disk(system, disk)
    with (
        system,
        serve(system, index=tmp_path / "clients.db", port=0, any_model=True) as server,
        httpx.Client(base_url=server.url, timeout=WAIT) as http,
    ):
        http.post("/agents", json={"id": "parent"})
        http.post("/agents/parent/turns", json={"prompt": "hello", "max_tokens": 4})
        http.post("/agents", json={"id": "ann", "system_prompt": "You are Ann."})
        system.forget("ann")
        known = server.service.index.known
        before = asyncio.run(server.service.claims.on_index(lambda: known("ann")))
        disk.armed = True

        body = {"id": "ann", "from": "parent", "at": 2}
        assert http.post("/agents", json=body).status_code == 500

        assert before is not None
        assert asyncio.run(server.service.claims.on_index(lambda: known("ann"))) == before


def test_whom_the_index_refuses_is_not_made(tmp_path: Path) -> None:
    with (
        AgentSystem(FaultyModel(), tmp_path) as system,
        serve(system, index=tmp_path / "clients.db", port=0, any_model=True) as server,
    ):
        with seeded(bug(Index, "begin")(full)):
            refused = post(server, asked("hello"))

        assert refused.status_code == 503
        assert system.agents() == []


def full(_true: Any) -> Any:
    def begin(*_given: Any) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    return begin


def test_a_fork_whose_cut_the_disk_refuses_is_refused(tmp_path: Path) -> None:
    disk = FailingFiles(name="append", path="*child*")
    system = AgentSystem(FaultyModel(), tmp_path)
    use_disk(system, disk)
    with (
        system,
        serve(system, port=0, any_model=True) as server,
        httpx.Client(base_url=server.url, timeout=WAIT) as http,
    ):
        http.post("/agents", json={"id": "parent"})
        for _ in range(2):
            http.post("/agents/parent/turns", json={"prompt": "hello", "max_tokens": 4})
        made = http.post("/agents", json={"id": "child", "from": "parent", "at": 2})

        assert made.status_code == 500
        assert "child" in made.text
        assert http.get("/agents/child").status_code == 404
        disk.armed = False
        again = http.post("/agents", json={"id": "child", "from": "parent", "at": 2})
        assert (again.status_code, again.json()["agent"]["turns"]) == (201, 2)


@pytest.mark.parametrize("how", ["delete", "rm"])
def test_nothing_of_who_is_deleted_stays_in_the_index(tmp_path: Path, how: str) -> None:
    index, answers = tmp_path / "clients.db", dict[str, httpx.Response]()

    def says(name: str) -> bool:
        return any(name.encode() in path.read_bytes() for path in tmp_path.glob("clients.db*"))

    with (
        AgentSystem(FaultyModel(), tmp_path) as system,
        serve(system, index=index, port=0, any_model=True) as server,
        httpx.Client(base_url=server.url, timeout=WAIT) as http,
    ):
        for cat in ("Biscuit", "Tiger"):
            body = {"model": "any", "input": f"My cat is {cat}.", "max_output_tokens": 4}
            answers[cat] = http.post("/v1/responses", json=body)
        [gone, stays] = [answer.headers["x-kvactors-agent"] for answer in answers.values()]
        if how == "delete":
            assert http.delete(f"/agents/{gone}").status_code == 204
            of = {cat: f"/v1/responses/{answer.json()['id']}" for cat, answer in answers.items()}
            assert http.get(of["Biscuit"]).status_code == 404
            assert "Tiger" in http.get(f"{of['Tiger']}/input_items").text
        assert says("Tiger")
    if how == "rm":
        assert says("Biscuit")
        remove_agent(gone, tmp_path, asks=False)

    assert (says("Biscuit"), says("Tiger")) == (False, True)
    assert [known.agent_id for known in agents_in(tmp_path)] == [stays]


def agents_in(root: Path) -> list[AgentState]:
    with AgentSystem(FaultyModel(), root) as system:
        return system.known_agents()


# -- with whose words and memory -----------------------------------------------------------


@pytest.fixture
def index() -> Iterator[Index]:
    index = Index(None)
    yield index
    index.close()


@pytest.fixture
def resolver(index: Index) -> Resolver:
    return Resolver(index, shipped_rules(), lambda _: "no")


def begins(
    resolver: Resolver, nonce: int, busy: set[str], *, tenant: str = "", parent: str = ""
) -> Plan:
    """How a client begins whose first line is one of its own."""
    system = f"x-anthropic-billing-header: cch={nonce};\n{RULES}"
    said = Message("system", system), Message("user", f"Part {nonce}.")
    client = Client(tenant=tenant, thread=f"own {nonce}", parent=parent)
    return resolver.plan(Inquiry(said, client, ()), busy)


def test_words_are_those_of_who_is_just_beginning_and_of_nobody_from_before(
    resolver: Resolver,
) -> None:
    first = begins(resolver, 1, set())
    beside = begins(resolver, 2, {first.known.agent_id})
    later = begins(resolver, 3, set())

    assert "cch=1" in first.conversation.system
    assert "cch=1" in beside.conversation.system
    assert beside.reuse.kept == ("billing-header",)
    assert "cch=3" in later.conversation.system
    assert later.reuse.kept == ()


def test_words_of_another_key_are_nobodys(resolver: Resolver) -> None:
    first = begins(resolver, 1, set(), tenant="a")
    other = begins(resolver, 2, {first.known.agent_id}, tenant="b")

    assert "cch=2" in other.conversation.system


def test_who_is_just_being_made_is_no_parent(resolver: Resolver, index: Index) -> None:
    first = begins(resolver, 1, set())
    busy = {first.known.agent_id}
    index.begin(first.known)
    early = begins(resolver, 2, busy, parent="own 1")
    index.note(first.known, 0, [Place(b"chain", first.known.agent_id, 1, "mark", "{}")])
    late = begins(resolver, 3, busy, parent="own 1")

    assert early.parent == ""
    assert late.parent == first.known.agent_id
