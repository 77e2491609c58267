"""Calls over Ray's actors: what comes back, and what becomes of one whose actor dies."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from nodes import Nodes
from seeded import bug, seeded
from shells import EchoShell, LateShell, SlowShell
from waiting import PATIENCE, eventually

from kvactors.actors.cluster.protocol.errors import (
    ClusterError,
    HostFailed,
    LedgerGap,
    Unreachable,
)
from kvactors.actors.cluster.protocol.wire import answered, pack
from kvactors.actors.cluster.ray.boot import came, start_actor
from kvactors.actors.cluster.ray.errors import NameTaken
from kvactors.actors.cluster.ray.lookup import NAMESPACE
from kvactors.actors.cluster.ray.raylet import NODE
from kvactors.actors.cluster.ray.transport import RayTransport


@pytest.fixture(scope="module")
def echo(three: Nodes) -> Any:
    """An actor that says again what it is told."""
    options = {"name": "echo", "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1}
    actor = ray.remote(EchoShell).options(**options, max_concurrency=100).remote()
    ray.get(actor.ready.remote())
    return actor


def call(method: str, to: str = "echo", **record: Any) -> dict[str, Any]:
    return asyncio.run(RayTransport().call(to, method, record, within=1))


async def items(method: str, count: int) -> list[int]:
    found = RayTransport().stream("echo", method, {"count": count})
    return [item["number"] async for item in found]


def test_a_record_comes_back_as_it_was(echo: Any) -> None:
    assert call("say", a=b"1", b=[1, None, {"c": 2.5}])["b"] == [1, None, {"c": 2.5}]


def test_errors_cross_as_records(echo: Any) -> None:
    with pytest.raises(LedgerGap) as gap:
        call("gap", agent="ada")
    assert gap.value.fields == {"agent": "ada", "have": 3}
    with pytest.raises(HostFailed, match="ZeroDivisionError: a bug"):
        call("bug")


def test_who_does_not_answer_in_time_is_unreachable(echo: Any) -> None:
    began = time.monotonic()
    with pytest.raises(Unreachable, match="never"):
        call("never")
    assert time.monotonic() - began < 10
    with pytest.raises(Unreachable, match="nobody"):
        call("say", to="nobody")


def test_a_stream_comes_item_by_item_and_in_order(echo: Any) -> None:
    assert asyncio.run(items("say", 200)) == list(range(200))


def test_an_error_ends_a_stream(echo: Any) -> None:
    with pytest.raises(LedgerGap):
        asyncio.run(items("gap", 3))


def test_the_successor_of_a_dead_actor_is_reached_by_its_name(echo: Any) -> None:
    first = call("say")["pid"]

    with pytest.raises(Unreachable):
        asyncio.run(items("die", 5))

    eventually(lambda: answers("echo", but=first))


def test_one_that_cannot_begin_is_begun_again(three: Nodes, tmp_path: Path) -> None:
    options = {"name": "late", "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1}
    actor = ray.remote(LateShell).options(**options).remote(str(tmp_path))

    with pytest.raises(HostFailed, match="OSError: the disk is not there yet"):
        answered(ray.get(actor.ready.remote()))
    eventually(lambda: answers("late"))


def test_one_that_is_made_again_begins_though_nobody_asks_it(three: Nodes, tmp_path: Path) -> None:
    options = {"name": "slow", "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1}
    actor = ray.remote(SlowShell).options(**options).remote(str(tmp_path))
    first = answered(ray.get(actor.ready.remote()))["pid"]

    os.kill(first, signal.SIGKILL)

    eventually(lambda: len(list(tmp_path.iterdir())) == 2)


def test_two_of_one_name_are_refused_with_what_to_do(echo: Any) -> None:
    with pytest.raises(NameTaken, match=r"'echo' runs in this cluster already.*--name"):
        start_actor(EchoShell, "echo", NODE)


def test_who_looks_for_a_name_without_end_ends_all_the_same() -> None:
    """As Ray looks where the head has ended."""
    program = (
        "import ray, time; from kvactors.actors.cluster.ray.lookup import look_up\n"
        "ray.get_actor = lambda *_, **__: time.sleep(3600)\n"
        "look_up('ada')"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE)


def test_who_is_told_to_hurry_waits_for_no_answer(echo: Any) -> None:
    never = echo.handle.remote("never", pack({}))
    told = iter([False, True])
    assert not came(never, lambda: next(told))
    assert came(echo.ready.remote(), lambda: False)


def answers(to: str, but: int = 0) -> bool:
    """Whether another process than that one does by now."""
    try:
        return bool(call("say", to)["pid"] != but)
    except ClusterError:
        return False


def test_all_who_ask_for_a_name_share_one_look_at_it(three: Nodes) -> None:
    looks, end = list[str](), threading.Event()

    @bug(ray, "get_actor")
    def for_ever(_true: Any) -> Any:
        def look(name: str, **_: str) -> Any:
            looks.append(name)
            end.wait(PATIENCE)
            raise ValueError(name)

        return look

    async def asked() -> list[Any]:
        transport = RayTransport()
        calls = [transport.call("nobody", "find", {}, within=0.3) for _ in range(20)]
        found: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        return found

    with seeded(for_ever):
        found = asyncio.run(asked())
        end.set()

    assert looks == ["nobody"]
    assert {type(error) for error in found} == {Unreachable}
