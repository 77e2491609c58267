"""The socket of a running system: whose it is, and clients that are hostile, slow or late."""

import errno
import os
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from makers import OpenSystem
from monitored import Held, connect, lines, top

from kvactors.actors import Sampling
from kvactors.actors.system.observe.monitor import (
    LEAST_INTERVAL,
    MOST_CLIENTS,
    Monitor,
    socket_path,
)
from kvactors.actors.testing import use_store
from kvactors.persistence.store.store import Store

WAIT = 60


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's, also where temporary ones are long."""
    with tempfile.TemporaryDirectory(prefix="kv", dir="/tmp") as folder:
        yield Path(folder).resolve()


# -- the socket ----------------------------------------------------------------------------


def test_the_socket_is_its_users_alone_and_goes_with_the_system(
    open_system: OpenSystem, short: Path
) -> None:
    system, path = open_system(store=short), socket_path(short)
    status = path.lstat()
    assert path == short / "top.sock"
    system.stop(timeout=WAIT)

    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert not path.exists()
    assert "kvactors-monitor" not in {thread.name for thread in threading.enumerate()}


def test_a_socket_that_cannot_be_taken_away_keeps_nothing_else_from_ending(
    open_system: OpenSystem, short: Path
) -> None:
    system, path = open_system(store=short), socket_path(short)
    path.unlink()
    path.mkdir()

    system.stop(timeout=WAIT)

    path.rmdir()
    open_system(store=short).stop(timeout=WAIT)


@pytest.mark.parametrize("options", [{"store": False}, {"deterministic": True}])
def test_there_is_none_without_a_store_and_in_deterministic_mode(
    open_system: OpenSystem, options: dict[str, Any]
) -> None:
    system = open_system(**options)

    assert system.parts.watching.monitor is None


def test_a_path_too_long_for_a_socket_is_in_the_runtime_folder(
    open_system: OpenSystem, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    store = tmp_path / ("x" * 120)
    system = open_system(store=store)

    path = socket_path(store)
    assert path.parent.parent == short
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.lstat().st_mode) == 0o600
    assert top(store, "--once").exit_code == 0
    system.stop(timeout=WAIT)
    assert not path.exists()


def test_a_store_of_a_long_path_is_known_by_its_folder_however_that_is_written(
    short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    store = tmp_path / ("x" * 120)
    store.mkdir()
    path = socket_path(store)

    assert socket_path(store.rename(tmp_path / ("X" * 120))) == path


def test_a_runtime_folder_that_others_may_write_is_not_used(
    open_system: OpenSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / f"kvactors-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)

    system = open_system(store=tmp_path / ("x" * 120))

    assert system.parts.watching.monitor is None
    assert system.spawn("alice").ask([1]).get(timeout=WAIT)


def test_a_file_of_that_name_is_left_alone(open_system: OpenSystem, short: Path) -> None:
    (short / "top.sock").write_text("mine")

    system = open_system(store=short)

    assert system.parts.watching.monitor is None
    assert (short / "top.sock").read_text() == "mine"
    system.stop(timeout=WAIT)


# -- clients -------------------------------------------------------------------------------


def test_two_clients_see_the_same_and_the_system_goes_on(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    held = Held(open_system)
    stream, path = held.begin(), socket_path(tmp_path / "store")
    with connect(path) as one, connect(path) as two:
        first, second = next(lines(one)), next(lines(two))
    stream.close()

    for seen in (first, second):
        assert (seen["pid"], seen["model"], seen["agents"]) == (os.getpid(), "held", 1)
        assert seen["health"]["state"] == "ok"
        assert seen["stats"]["active_agents"] + seen["stats"]["hot_agents"] == 1
        assert {turn["agent_id"] for turn in seen["turns"]} <= {"alice"}
    held.system.wait_idle(WAIT)
    held.system.check()


def test_clients_that_talk_stall_or_crowd_are_dropped(short: Path) -> None:
    big, before = {"text": "x" * 100_000}, set(threading.enumerate())
    monitor = Monitor(short / "top.sock", lambda: big, interval=0.01)
    with ExitStack() as stack:
        stack.callback(monitor.close)
        reader, talker, *silent = [
            stack.enter_context(connect(monitor.path)) for _ in range(MOST_CLIENTS)
        ]
        told = lines(reader)
        next(told)
        one_too_many = stack.enter_context(connect(monitor.path))
        assert ends(one_too_many)
        talker.sendall(b"GET / HTTP/1.1\r\n\r\n")
        # More than the buffers hold of those that take nothing.
        assert [next(told) for _ in range(8)] == [big] * 8

        assert all(ends(client) for client in (talker, *silent))
        late = stack.enter_context(connect(monitor.path))
        assert next(lines(late)) == big
        told.close()

    assert set(threading.enumerate()) <= before
    assert not monitor.path.exists()


def ends(client: socket.socket) -> bool:
    """Whether the other side has closed, once all that it had sent is read."""
    with suppress(ConnectionResetError):
        while client.recv(1 << 16):
            pass
    return True


def test_an_engine_that_is_busy_keeps_nobody_from_seeing_that(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    held = Held(open_system)
    held.system.parts.watching.patience = 0.05
    held.model.arm(hold=held.go)
    asked = held.system.spawn("alice").ask([1, 2], sampling=Sampling(max_tokens=3))
    assert held.model.reached.wait(WAIT)

    with connect(socket_path(tmp_path / "store")) as client:
        seen = next(lines(client))
    screen = top(tmp_path / "store", "--once")
    held.go.set()

    assert (seen["stats"], seen["turns"]) == (None, None)
    assert seen["health"]["step_seconds"] > 0
    assert seen["outstanding_turns"] == 1
    assert "busy" in screen.stdout
    assert asked.get(timeout=WAIT).usage.generated_tokens == 3


def test_a_store_that_cannot_say_what_it_has_keeps_nobody_from_seeing_the_rest(
    open_system: OpenSystem, tmp_path: Path
) -> None:
    class Broken(Store):
        def counts(self, *_: Any) -> Any:
            raise OSError("input/output error")

    open_system(prepare=partial(use_store, kind=Broken))

    with connect(socket_path(tmp_path / "store")) as client:
        seen = next(lines(client))["stats"]

    assert seen["active_agents"] == 0
    assert "warm_agents" not in seen


def test_while_there_are_no_descriptors_the_monitor_waits(short: Path) -> None:
    pauses = list[float]()

    class Full(socket.socket):
        def accept(self) -> Any:
            if len(pauses) < 2:
                raise OSError(errno.EMFILE, "too many open files")
            return super().accept()

    monitor = Monitor(short / "top.sock", dict, sleep=pauses.append, sockets=Full)
    with connect(monitor.path) as client:
        assert next(lines(client)) == {}
    monitor.close()

    assert pauses == [LEAST_INTERVAL] * 2
