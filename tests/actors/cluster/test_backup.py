"""A running cluster into an object store, and out of it into an empty cluster."""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from together import Together

from kvactors import Cluster
from kvactors.actors import AgentSystem
from kvactors.actors.cluster.backup import back_up_cluster
from kvactors.actors.cluster.machine.direct import DirectTransport
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.machine.loop import LoopThread
from kvactors.actors.cluster.protocol.errors import AgentExists
from kvactors.actors.cluster.protocol.records import Place, Settings
from kvactors.persistence import Store
from kvactors.persistence.backup.backup import BackupReport
from kvactors.persistence.backup.objects import open_objects
from kvactors.persistence.backup.restore import restore
from kvactors.persistence.backup.snapshot import AgentEntry
from kvactors.persistence.errors import BackupFailed

WAIT = 60
KEY = b"k" * 32
FACT, QUESTION = "My cat is called Biscuit.", "What is my cat called?"
ANSWER = "Your cat is called Biscuit."

Open = Callable[..., Together]


@pytest.fixture
def open_in(tmp_path: Path) -> Iterator[Open]:
    """Nodes by their names, with stores in a folder of the test's."""
    opened: list[Together] = []

    def start(folder: str, *names: str, key: bytes | None = None) -> Together:
        (tmp_path / folder).mkdir(exist_ok=True)
        opened.append(Together(tmp_path / folder, *names, key=key))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def eventually(so: Callable[[], object]) -> None:
    until = time.monotonic() + WAIT
    while not so():
        assert time.monotonic() < until
        time.sleep(0.05)


def told(cluster: Cluster, *agents: str) -> None:
    for agent in agents:
        spawned = cluster.spawn(agent, system_prompt="You answer from memory.", group=agent)
        reply = spawned.ask(FACT).get(timeout=WAIT)
        assert reply.durable.get(timeout=WAIT)
        assert reply.cached.get(timeout=WAIT)


@pytest.mark.parametrize("key", [None, KEY])
def test_a_running_cluster_comes_back_in_an_empty_one(
    tmp_path: Path, open_in: Open, key: bytes | None
) -> None:
    old = open_in("old", "n1", "n2", "n3", key=key)
    url = (tmp_path / "objects").as_uri()
    told(old.cluster, "alice", "bob", "carol")
    old.cluster.spawn("child", from_="alice")
    old.cluster.spawn("echo", group="g", behaviour="talking:Echo").ask("Hi.").get(timeout=WAIT)
    old.cluster.spawn("silent")

    first = old.cluster.backup(url)
    again = old.cluster.backup(url)

    assert (first.agents, first.skipped) == (5, ())
    assert (again.agents, again.nbytes, again.added) == (5, first.nbytes, 0)
    parts = [restore(open_objects(url), tmp_path / "new" / f"m{n}", part=(n, 2)) for n in (1, 2)]
    assert (sum(parts), min(parts) > 0) == (5, True)
    new = open_in("new", "m1", "m2", key=key)
    for agent in ("alice", "bob", "carol", "child"):
        found = new.cluster.find(agent)
        assert found is not None
        reply = found.ask(QUESTION).get(timeout=WAIT)
        assert (reply.text, reply.cache) == (ANSWER, "warm")
        assert reply.durable.get(timeout=WAIT)
    there = [one.agent_id for one in new.cluster.agents()]
    assert there == ["alice", "bob", "carol", "child", "echo"]
    # How they were spawned came, too.
    new.cluster.spawn("alice", "You answer from memory.", group="alice")
    with pytest.raises(AgentExists):
        new.cluster.spawn("bob", "Another prompt.", group="bob")
    echo = new.cluster.find("echo")
    assert echo is not None
    assert echo.request({"n": 1}, timeout=WAIT).get(timeout=WAIT)
    # And each has a second copy.
    eventually(lambda: all(place.replica for place in new.cluster.places().values()))


def test_an_agent_whose_node_is_lost_meanwhile_is_copied_where_it_is_then(
    tmp_path: Path, open_in: Open
) -> None:
    nodes = open_in("old", "n1", "n2")
    told(nodes.cluster, "alice")
    nodes.lose(nodes.cluster.place("alice").node)

    report = nodes.cluster.backup((tmp_path / "objects").as_uri())

    assert (report.agents, report.skipped) == (1, ())


def alice_on(node: str) -> Place:
    return Place("alice", node, 1, 1, None, None, 1)


class Finds:
    """A directory by which alice is on one of `nodes` after the other, whenever she is found."""

    def __init__(self, *nodes: str) -> None:
        self._nodes = iter(nodes)

    async def handle(self, _method: str, _record: Any) -> dict[str, Any]:
        return alice_on(next(self._nodes)).to_record()


class Stores(Finds):
    """A node that has nothing of hers, or this `entry`."""

    def __init__(self, entry: AgentEntry | None = None) -> None:
        super().__init__()
        self._entry = entry and entry.plain()

    async def stream(self, _method: str, _record: Any) -> AsyncIterator[dict[str, Any]]:
        yield {"agent": "alice", "entry": self._entry, "problem": None, "nbytes": 0, "added": 0}


def backed_up(directory: Finds, url: str) -> BackupReport:
    """What "n1" has, where it has alice, and "n2"; by when the first look at them has ended as many
    leases have gone by as one likes."""
    nodes = {"n1": Stores(), "n2": Stores(AgentEntry("alice", (), ())), "n3": Stores()}
    transport = DirectTransport({"directory": directory, **nodes})
    link = Link(LoopThread("client"), transport, Settings(lease=0), WAIT)
    try:
        return link.run(back_up_cluster(link, {"alice": alice_on("n1")}, url))
    finally:
        link.close()


def test_an_agent_that_moves_while_a_backup_looks_for_long_is_copied_or_named(
    tmp_path: Path,
) -> None:
    url = (tmp_path / "objects").as_uri()

    never = backed_up(Finds("n3", "n1"), url)
    found = backed_up(Finds("n2"), url)

    assert (never.agents, never.skipped) == (0, ("alice: it moved, or began, meanwhile",))
    assert (found.agents, found.skipped) == (1, ())


@pytest.mark.slow
def test_an_agent_whose_nodes_are_lost_is_named_and_stays_as_it_was(
    tmp_path: Path, open_in: Open
) -> None:
    nodes, url = open_in("old", "n1", "n2"), (tmp_path / "objects").as_uri()
    told(nodes.cluster, "alice")
    nodes.cluster.backup(url)
    nodes.lose("n1")
    nodes.lose("n2")

    report = nodes.cluster.backup(url)

    assert report.agents == 1
    assert [reason.split(":")[0] for reason in report.skipped] == ["alice"]
    restore(open_objects(url), tmp_path / "new")
    assert Store(tmp_path / "new").read_ledger("alice")


def test_a_backup_whose_objects_are_elsewhere_is_none(open_in: Open) -> None:
    nodes = open_in("old", "n1")
    nodes.cluster.spawn("alice").ask(FACT).get(timeout=WAIT)

    # Each who opens this has a memory of its own.
    with pytest.raises(BackupFailed, match="must reach one object store by this URL"):
        nodes.cluster.backup("memory:///")


def test_a_url_that_no_node_can_use_is_refused(open_in: Open) -> None:
    nodes = open_in("old", "n1")
    nodes.cluster.spawn("alice").ask(FACT).get(timeout=WAIT)

    with pytest.raises(BackupFailed, match="gopher"):
        nodes.cluster.backup("gopher://x")


def test_the_store_of_a_system_becomes_that_of_a_cluster(tmp_path: Path) -> None:
    with AgentSystem(store=tmp_path / "store") as system:
        for agent in ("ada", "echo"):
            system.spawn(agent).ask(FACT).get(timeout=WAIT).cached.get(timeout=WAIT)

    with Cluster.local(store=tmp_path / "store") as cluster:
        ada = cluster.spawn("ada")
        reply = ada.ask(QUESTION).get(timeout=WAIT)
        assert (reply.text, reply.cache) == (ANSWER, "warm")
        echo = cluster.find("echo")
        assert echo is not None
        assert echo.ask(QUESTION).get(timeout=WAIT).text == ANSWER
        behaving = cluster.spawn("echo", group="g", behaviour="talking:Echo")
        assert behaving.request({"n": 1}, timeout=WAIT).get(timeout=WAIT)
    with Cluster.local(store=tmp_path / "store") as cluster:
        assert [agent.agent_id for agent in cluster.agents()] == ["ada", "echo"]
