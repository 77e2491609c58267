"""Actors of Ray around places that tests see through."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from kvactors.actors.cluster.protocol.errors import LedgerGap
from kvactors.actors.cluster.ray.shell import Shell


class Echo:
    """Answers with what it was sent, or as the method says."""

    async def handle(self, method: str, record: Any) -> Any:
        if method == "gap":
            raise LedgerGap(agent=record["agent"], have=3)
        if method == "bug":
            raise ZeroDivisionError("a bug")
        if method == "never":
            await asyncio.Event().wait()
        if method == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return {**record, "pid": os.getpid()}

    async def stream(self, method: str, record: Any) -> AsyncIterator[Any]:
        for number in range(record["count"]):
            if method == "die" and number == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            yield {"number": number}
        if method == "gap":
            raise LedgerGap(agent="a", have=3)


class LateShell(Shell):
    """One that cannot begin but in its third process: `folder` counts them."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        super().__init__()

    async def begin(self) -> Any:
        (self._folder / str(os.getpid())).touch()
        if len(list(self._folder.iterdir())) < 3:
            raise OSError("the disk is not there yet")
        return Echo()


class SlowShell(Shell):
    """One whose process takes long to make it: a file of its id in `folder` says that it began."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)
        # Ray says meanwhile that its actor is about to be there again.
        time.sleep(2)

    async def begin(self) -> Any:
        (self._folder / str(os.getpid())).touch()
        return Echo()


class EchoShell(Shell):
    """One that begins at once."""

    async def begin(self) -> Any:
        return Echo()
