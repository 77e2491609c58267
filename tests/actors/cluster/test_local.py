"""A cluster of one process: the same handle, no Ray."""

import asyncio
import errno
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seeded import bug, seeded

from kvactors import Cluster
from kvactors.actors.cluster.machine.journal import FileJournal
from kvactors.actors.cluster.protocol.errors import AgentExists, NoRoom, UnknownAgent, UnknownNode
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.actors.turns.reply import Reply
from kvactors.core.errors import (
    BlockingCall,
    EmptyPrompt,
    InvalidAgentId,
    InvalidConfig,
    InvalidInput,
    SystemStopped,
    TokenOutOfRange,
)
from kvactors.core.schedule.sampling import Sampling
from kvactors.persistence.errors import LedgerUnreadable

FACT = "My cat is called Biscuit."
QUESTION = "What is my cat called?"
ANSWER = "Your cat is called Biscuit."

Open = Callable[[], Cluster]


def test_an_agent_remembers_across_restarts(open_cluster: Open) -> None:
    with open_cluster() as cluster:
        agent = cluster.spawn("ada", system_prompt="You answer from memory.")
        assert agent.ask(FACT).get(timeout=60).durable.get(timeout=60)
    with open_cluster() as cluster:
        again = cluster.spawn("ada")
        reply = again.ask(QUESTION).get(timeout=60)
        assert (reply.text, reply.cache) == (ANSWER, "warm")
        assert [other.agent_id for other in cluster.agents()] == ["ada"]


def test_a_reply_says_truly_when_its_kv_is_on_disk(open_cluster: Open) -> None:
    with open_cluster() as cluster:
        agent = cluster.spawn("ada", system_prompt="You answer from memory.")
        reply = agent.ask(FACT, request_id="told").get(timeout=60)
        assert reply.cached.get(timeout=60) is True
        seen = []
        reply.cached.on_done(lambda done: seen.append(done.get()))
        assert seen == [True]
    with open_cluster() as cluster:
        again = cluster.spawn("ada").ask(FACT, request_id="told").get(timeout=60)
        assert (again.recorded, asyncio.run(settled(again))) == (True, True)


def test_a_disk_that_refuses_the_directory_a_change_costs_that_change_alone(
    open_cluster: Open,
) -> None:
    full = threading.Event()

    @bug(FileJournal, "append")
    def the_disk_is_full(true: Any) -> Any:
        async def append(journal: FileJournal, record: Record) -> None:
            if full.is_set() and "places" in record:
                raise OSError(errno.ENOSPC, "no space left")
            await true(journal, record)

        return append

    with seeded(the_disk_is_full), open_cluster() as cluster:
        ada = cluster.spawn("ada")
        assert ada.ask(FACT).get(timeout=60).durable.get(timeout=60)
        full.set()
        with ThreadPoolExecutor(1) as others:
            bea = others.submit(cluster.spawn, "bea")
            # Whoever asks meanwhile asks again.
            wait([bea], timeout=1)
            full.clear()

            assert bea.result(timeout=60).ask(FACT).get(timeout=60).text
        assert ada.ask(QUESTION).get(timeout=60).text == ANSWER


async def settled(reply: Reply) -> bool:
    """As one waits under asyncio."""
    return await reply.cached


def test_pieces_add_up_to_the_reply_on_a_thread_and_under_asyncio(open_cluster: Open) -> None:
    agent = open_cluster().spawn("ada", system_prompt="You answer from memory.")
    agent.ask(FACT).get(timeout=60)

    async def read() -> str:
        stream = agent.stream_async(QUESTION)
        with pytest.raises(BlockingCall, match="has not ended"):
            _ = stream.reply
        text = "".join([piece.text async for piece in stream])
        assert text == stream.reply.text
        return text

    with agent.stream(QUESTION) as stream:
        assert "".join(piece.text for piece in stream) == stream.reply.text == ANSWER
    assert asyncio.run(read()) == ANSWER
    assert asyncio.run(agent.ask_async(QUESTION)).text == ANSWER


def test_what_is_told_and_observed_is_remembered_in_order(open_cluster: Open) -> None:
    agent = open_cluster().spawn("ada", system_prompt="You answer from memory.")

    agent.tell(FACT)
    agent.observe("I like tea.")
    assert agent.ask(QUESTION).get(timeout=60).text == ANSWER

    found = agent.transcript()
    asked = [turn.text for turn in found.turns if turn.role == "user"]
    assert asked == [FACT, "I like tea.", QUESTION]
    assert sum(len(turn.token_ids) for turn in found.turns) == len(found.token_ids)


def test_sampling_and_whole_conversations_cross(open_cluster: Open) -> None:
    agent = open_cluster().spawn("ada")
    talk = [{"role": "user", "content": [{"type": "text", "text": FACT}]}]

    reply = agent.ask(messages=talk, sampling=Sampling(max_tokens=2, top_logprobs=1))

    found = reply.get(timeout=60)
    assert (found.match, len(found.token_ids), found.finish_reason) == ("extend", 2, "length")
    assert [len(scored.top) for scored in found.logprobs] == [1, 1]
    chosen = Sampling(choices=("yes", "no"))
    assert agent.ask("Is it?", sampling=chosen).get(timeout=60).text in ("yes", "no")
    numbers: Any = {"timeout": np.float32(60), "priority": np.int64(1), "threshold": Fraction(1, 2)}
    assert agent.ask("Is it?", **numbers).get(timeout=60).text


def test_bad_input_is_refused_before_anything_is_sent(open_cluster: Open) -> None:
    cluster = open_cluster()
    agent = cluster.spawn("ada", system_prompt="You answer from memory.")

    with pytest.raises(EmptyPrompt):
        agent.ask("")
    with pytest.raises(InvalidInput, match="one of them"):
        agent.ask("a", messages=[{"role": "user", "content": "a"}])
    with pytest.raises(InvalidInput, match="timeout"):
        agent.stream("a", timeout=-1)
    with pytest.raises(InvalidInput, match="ask has no parameter 'sample': did you mean 'samp"):
        agent.ask("a", sample=Sampling())  # type: ignore[call-arg]
    with pytest.raises(InvalidAgentId):
        cluster.spawn("")
    with pytest.raises(InvalidInput, match="group"):
        cluster.spawn("bob", group="")
    with pytest.raises(InvalidInput, match='durable is "one" or "two"'):
        Cluster.connect(durable="three")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfig, match="store must be a directory"):
        Cluster.local(store=False)  # type: ignore[arg-type]
    with pytest.raises(TokenOutOfRange, match="outside the vocabulary"):
        agent.ask([10**6]).get(timeout=60)
    with pytest.raises(AgentExists):
        cluster.spawn("ada", system_prompt="Another.")
    assert not agent.transcript().turns


@pytest.mark.parametrize("wrong", [None, 5, ["here"], object()])
def test_what_is_no_name_is_refused_before_anybody_is_asked(open_cluster: Open, wrong: Any) -> None:
    cluster = open_cluster()
    cluster.spawn("ada")

    with pytest.raises(InvalidAgentId, match="a string, not"):
        cluster.place(wrong)
    for undo in (False, True):
        with pytest.raises(InvalidInput, match="a node is named by a string, not"):
            cluster.drain(wrong, undo=undo)
    with pytest.raises(InvalidInput if wrong else NoRoom):
        cluster.migrate("ada", wrong)
    with pytest.raises(UnknownNode):
        cluster.migrate("ada", "")


@pytest.mark.parametrize("name", ["directory", "node"])
def test_who_cannot_read_its_journal_leaves_the_store_to_who_mends_that(
    open_cluster: Open, tmp_path: Path, name: str
) -> None:
    with open_cluster() as cluster:
        cluster.spawn("ada")
    journal = tmp_path / "store" / "cluster" / f"{name}.journal"
    whole = journal.read_bytes()
    journal.write_bytes(b"damaged")

    with pytest.raises(LedgerUnreadable, match=r"from a backup \(no agent's memory is in it\)"):
        open_cluster()

    journal.write_bytes(whole)
    with open_cluster() as cluster:
        assert cluster.find("ada")


def test_who_is_forgotten_is_nobody(open_cluster: Open) -> None:
    cluster = open_cluster()
    agent = cluster.spawn("ada")
    agent.ask(FACT).get(timeout=60)

    cluster.forget(agent)

    assert cluster.find("ada") is None
    with pytest.raises(UnknownAgent):
        cluster.place("ada")


def test_one_node_has_nowhere_to_move_to(open_cluster: Open) -> None:
    cluster = open_cluster()
    cluster.spawn("ada")

    with pytest.raises(NoRoom):
        cluster.migrate("ada")
    with pytest.raises(NoRoom):
        cluster.drain("here")
    assert cluster.stats()["nodes"]["here"]["agents"] == 1


def test_a_cluster_that_was_left_takes_nothing(open_cluster: Open) -> None:
    cluster = open_cluster()
    agent = cluster.spawn("ada")
    cluster.close()
    cluster.close()

    with pytest.raises(SystemStopped, match="connect again"):
        agent.ask(FACT)


def test_it_is_public_and_loads_no_ray_and_no_mlx() -> None:
    code = "from kvactors import Cluster, ClusterAgent; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert not {"ray", "mlx"} & set(done.stdout.split())
