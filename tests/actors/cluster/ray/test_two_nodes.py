"""Two nodes without a key, one on a small disk: commands, where they listen, a disk that is full, a
node that stands still in the middle of a turn, and a head of which nothing is left."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes import Nodes, descendants
from waiting import eventually

from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.host.requests import ask_request
from kvactors.actors.cluster.protocol.errors import Fenced, LeaseLost, NotOwner, StaleEpoch
from kvactors.actors.cluster.ray.transport import RayTransport
from kvactors.core.errors import KvactorsError
from kvactors.core.schedule.grammar import Grammar
from kvactors.core.schedule.sampling import Sampling

FACTS = ["My cat is called Biscuit.", "The candle costs 90 dollars."]
QUESTION = "What is my cat called?"
ANSWER = "Your cat is called Biscuit."
QUESTIONS = [f"What is number {number}?" for number in range(200)]
SMALL = "two"
TALK = """\
name: talk
sampling: {max_tokens: 4}
agents: {anna: {persona: "You are Anna."}, bob: {}}
phases:
  - name: first
    steps:
      - say: "Speak."
"""
LISTENS = "0A"
TABLES = Path("/proc/net")
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


@pytest.fixture(scope="module")
def harsh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A head, and a node whose disk is small."""
    folder = tmp_path_factory.mktemp("harsh")
    disk = folder / SMALL
    disk.mkdir()
    mounts = ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(disk)]
    mounted = not subprocess.run(mounts, capture_output=True, check=False).returncode
    try:
        nodes = Nodes(folder, "one", SMALL)
        yield nodes
        nodes.end()
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(disk)], check=True)


@pytest.fixture
def small(harsh: Nodes) -> Nodes:
    """The same, where the disk is small indeed."""
    if not os.path.ismount(harsh.folder / SMALL):
        pytest.skip("a small disk takes the right to mount one")
    return harsh


class Full:
    """The small disk, without room while it lasts."""

    def __init__(self, nodes: Nodes) -> None:
        self._file = nodes.folder / SMALL / "filler"

    def __enter__(self) -> None:
        with self._file.open("wb", buffering=0) as file:
            for size in (2**20, 2**12, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue

    def __exit__(self, *_: object) -> None:
        self._file.unlink()


def told(nodes: Nodes, name: str, node: str) -> ClusterAgent:
    agent = nodes.cluster.spawn(name, system_prompt="You answer from memory.")
    nodes.cluster.migrate(agent, node)
    for fact in FACTS:
        assert agent.ask(fact).get(timeout=60).durable.get(timeout=60)
    return agent


def turns(agent: ClusterAgent) -> list[str]:
    return [turn.text for turn in agent.transcript().turns if turn.role == "user"]


def sockets(pid: int) -> Iterator[str]:
    """The inodes of those that a process has."""
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                yield target.removeprefix("socket:[").removesuffix("]")
    except OSError:
        return


def listeners() -> Iterator[tuple[str, str]]:
    """Addresses that somebody listens at, as the system writes them, and their inodes."""
    for table in ("tcp", "tcp6"):
        for line in (TABLES / table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENS:
                yield fields[1], fields[9]


def test_a_node_is_drained_and_taken_back_by_commands(harsh: Nodes) -> None:
    at = ["--address", harsh.address]
    for number in range(4):
        harsh.cluster.spawn(f"drained-{number}", group=f"group {number}")

    gone = harsh.command("cluster", "drain", "two", *at)
    drained = harsh.read("cluster", "status")["nodes"]["two"]
    back = harsh.command("cluster", "drain", "two", "--undo", *at)
    taken = harsh.read("cluster", "status")["nodes"]["two"]

    assert (gone.returncode, back.returncode) == (0, 0), gone.stderr + back.stderr
    assert "two has no agents, and gets none" in gone.stderr
    assert "two takes agents again" in back.stderr
    assert (drained["agents"], drained["draining"], taken["draining"]) == (0, True, False)


def test_a_scenario_is_run_with_a_cluster_by_a_command(harsh: Nodes, tmp_path: Path) -> None:
    file = tmp_path / "talk.yaml"
    file.write_text(TALK)

    ran = harsh.command(
        "run", str(file), "--cluster", harsh.address, "--out", str(tmp_path / "out")
    )

    assert ran.returncode == 0, ran.stderr
    assert any((tmp_path / "out").iterdir())
    lived = {agent.agent_id for agent in harsh.cluster.agents()}
    assert any("anna" in agent_id for agent_id in lived), lived


@pytest.mark.skipif(not TABLES.is_dir(), reason=f"who listens is read in {TABLES}: not here")
def test_nothing_listens_beyond_this_machine(harsh: Nodes) -> None:
    processes = [p.pid for p in harsh.running.values()]
    of_nodes = {pid for process in processes for pid in [process, *descendants(process)]}
    inodes = {inode for pid in of_nodes for inode in sockets(pid)}

    listening = {address for address, inode in listeners() if inode in inodes}

    # Ray's own server, raylets and workers among them.
    assert len(listening) > 5
    assert [a for a in sorted(listening) if not a.startswith(LOOPBACK)] == []


def test_a_turn_on_a_full_disk_fails_and_is_taken_once_there_is_room(small: Nodes) -> None:
    agent = told(small, "owned", SMALL)
    given: list[str] = []

    def until_refused() -> None:
        # The last page of a file has room for some.
        for question in QUESTIONS:
            assert agent.ask(question, request_id=question).get(timeout=60).durable.get(timeout=60)
            given.append(question)

    with Full(small), pytest.raises(KvactorsError, match=r"[Nn]o space left"):
        until_refused()

    refused = QUESTIONS[len(given)]
    assert agent.ask(refused, request_id=refused).get(timeout=60).text
    assert agent.ask(QUESTION).get(timeout=60).text == ANSWER
    assert turns(agent) == [*FACTS, *given, refused, QUESTION]


def test_a_turn_whose_copy_finds_no_room_is_durable_when_there_is(small: Nodes) -> None:
    agent = told(small, "copied", "one")
    given: list[str] = []

    with Full(small):
        for question in QUESTIONS:
            reply = agent.ask(question).get(timeout=60)
            given.append(question)
            if not reply.durable.done:
                break
        assert not reply.durable.done
        assert agent.ask(QUESTION).get(timeout=60).text == ANSWER

    assert reply.durable.get(timeout=60)
    assert small.cluster.place("copied").replica == SMALL
    assert turns(agent) == [*FACTS, *given, QUESTION]


def test_a_node_that_stands_still_in_the_middle_of_a_turn_does_not_answer_for_it(
    harsh: Nodes,
) -> None:
    agent = told(harsh, "interrupted", SMALL)
    transport = RayTransport()
    # It ends long after it was seen to run.
    endless = Sampling(max_tokens=1000, grammar=Grammar.regex("(ab ){300}"))
    request = ask_request("Say it.", request_id="long", sampling=endless)
    stopped = harsh.pid(SMALL)

    async def ask_past_the_directory() -> None:
        record = {"agent": "interrupted", "request": request}
        turn = asyncio.ensure_future(transport.call(SMALL, "turn", record))
        running = None
        while running != "long":
            found = await transport.call(SMALL, "running", {"agent": "interrupted"}, within=60)
            running = found["request"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            await asyncio.to_thread(eventually, elsewhere)
        finally:
            os.kill(stopped, signal.SIGCONT)
        await turn

    def elsewhere() -> bool:
        return harsh.cluster.place("interrupted").node != SMALL

    with pytest.raises((LeaseLost, NotOwner, Fenced, StaleEpoch)):
        asyncio.run(ask_past_the_directory())

    assert agent.ask(QUESTION).get(timeout=60).text == ANSWER
    assert turns(agent) == [*FACTS, QUESTION]
    eventually(lambda: SMALL in harsh.alive())


@pytest.mark.slow
def test_a_head_of_which_nothing_is_left_is_started_again_and_forgets_nothing(harsh: Nodes) -> None:
    for name, node in (("at the head", "one"), ("elsewhere", SMALL)):
        told(harsh, name, node)
    before = harsh.cluster.places()

    harsh.kill_head()
    harsh.begin_again()

    after = harsh.cluster.places()
    assert after.keys() == before.keys()
    for name in ("at the head", "elsewhere"):
        agent = harsh.cluster.find(name)
        assert agent is not None
        assert agent.ask(QUESTION).get(timeout=60).text == ANSWER
        assert turns(agent) == [*FACTS, QUESTION]
