"""The monitor: a local socket on which `kvactors top` reads how a running system is.

One thread, which sleeps until somebody connects. Everybody connected gets the same snapshot
twice a second, as a line of JSON. Nothing is read from clients, nothing waits for them: one that
talks, or does not take its lines, is dropped. Only the user who runs the system can connect.
"""

import json
import logging
import os
import selectors
import socket
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kvactors.core.errors import KvactorsError

__all__ = ["Monitor", "socket_path"]

logger = logging.getLogger(__name__)

SOCKET_NAME = "top.sock"
# Bytes of a socket's path, with the final zero: macOS has room for 104, Linux for 108.
LONGEST_PATH = 103
INTERVAL = 0.5
# At most so often, in seconds, however many come and go.
LEAST_INTERVAL = 0.1
MOST_CLIENTS = 8
SEND_BUFFER = 1 << 18

Snapshot = dict[str, Any]


def socket_path(store: Path) -> Path:
    """Where a system with this store listens: in the store, or, if that path is too long for a
    socket, in the user's runtime folder."""
    path = Path(os.path.realpath(store), SOCKET_NAME)
    if len(os.fsencode(path)) <= LONGEST_PATH:
        return path
    # By the folder itself: where case counts for nothing, one folder has several paths.
    found = path.parent.stat()
    return _runtime_folder() / f"{found.st_dev:x}-{found.st_ino:x}.sock"


class Monitor:
    """Serves `snapshot()` on a socket at `path`, called on the monitor's thread, while anybody
    looks, every `interval` seconds. `sleep` takes seconds; `sockets` is the class of the one that
    listens."""

    def __init__(
        self,
        path: Path,
        snapshot: Callable[[], Snapshot],
        *,
        interval: float = INTERVAL,
        sleep: Callable[[float], object] = time.sleep,
        sockets: type[socket.socket] = socket.socket,
    ) -> None:
        """Begin to listen. The store's lock is held: a socket that is there is of a process that
        was killed. Raises OSError."""
        self.path = path
        self._snapshot = snapshot
        self._interval = interval
        self._sleep = sleep
        self._clients: set[socket.socket] = set()
        self._waker, self._woken = socket.socketpair()
        self._listener = sockets(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._bind()
        except OSError:
            self._close_sockets()
            raise
        self._thread = threading.Thread(target=self._run, name="kvactors-monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Tell everybody goodbye and end the thread."""
        self._waker.close()
        # Not for ever: it may be waiting for an engine that hangs.
        self._thread.join(5.0)
        self._close_sockets()
        # One that stays, since its folder cannot be written any more, is taken away by the next.
        with suppress(OSError):
            self.path.unlink()

    def abandon(self) -> None:
        """In a forked child: the socket is the parent's."""
        self._close_sockets()

    def _bind(self) -> None:
        with suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise FileExistsError(f"{self.path} is there and is no socket")
            self.path.unlink()
        self._listener.bind(str(self.path))
        # Nobody can connect before `listen`.
        self.path.chmod(0o600)
        self._listener.listen(MOST_CLIENTS)
        self._listener.setblocking(False)

    def _close_sockets(self) -> None:
        for each in (self._listener, self._waker, self._woken, *self._clients):
            each.close()

    # -- its thread --------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._listener, selectors.EVENT_READ)
                selector.register(self._woken, selectors.EVENT_READ)
                self._serve(selector)
        except KvactorsError as error:
            logger.debug("the monitor ends: %s", error)
        except Exception:
            logger.exception("the monitor ends: `kvactors top` will not find this system")

    def _serve(self, selector: selectors.BaseSelector) -> None:
        due = 0.0
        while True:
            wait = max(0.0, due - time.monotonic()) if self._clients else None
            for key, _ in selector.select(wait):
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self._listener:
                    self._accept(selector)
                    due = min(due, time.monotonic() + LEAST_INTERVAL)
                else:
                    # It has gone, or says something: there is nothing to say.
                    self._drop(selector, key.fileobj)  # type: ignore[arg-type]
            if self._clients and time.monotonic() >= due:
                self._send(selector, json.dumps(self._snapshot()).encode() + b"\n")
                due = time.monotonic() + self._interval

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:
            # No descriptors are left, perhaps: whoever knocks would keep this thread busy.
            self._sleep(LEAST_INTERVAL)
            return
        if len(self._clients) >= MOST_CLIENTS:
            client.close()
            return
        client.setblocking(False)
        # macOS refuses it for one that has gone already.
        with suppress(OSError):
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._clients.add(client)
        selector.register(client, selectors.EVENT_READ)

    def _send(self, selector: selectors.BaseSelector, line: bytes) -> None:
        for client in list(self._clients):
            sent = 0
            with suppress(OSError):
                sent = client.send(line)
            if sent < len(line):
                self._drop(selector, client)

    def _drop(self, selector: selectors.BaseSelector, client: socket.socket) -> None:
        selector.unregister(client)
        self._clients.discard(client)
        client.close()


def _runtime_folder() -> Path:
    """A folder of this user alone, with a short path. Raises OSError if it is somebody else's."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or "/tmp", f"kvactors-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder of this user alone")
    return folder
