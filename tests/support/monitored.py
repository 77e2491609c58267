"""A system whose turn stands still, and who looks at it: a client of its socket, `kvactors top`."""

import json
import socket
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

from makers import OpenSystem
from typer.testing import CliRunner

from kvactors.actors import Sampling
from kvactors.actors.frontends.cli.app import app
from kvactors.core.testing.models import Faulty, PlainTokenizer, snap_to_grid, tiny_model

__all__ = ["Held", "connect", "lines", "top"]

WAIT = 60
RUNNER = CliRunner()


class Held:
    """A system whose one turn stands still while it decodes."""

    def __init__(self, open_system: OpenSystem) -> None:
        self.model = Faulty(snap_to_grid(tiny_model()))
        self.system = open_system(lambda: (self.model, PlainTokenizer()), model_name="held")
        self.go = threading.Event()

    def begin(self) -> Any:
        stream = self.system.spawn("alice").stream([5] * 40, sampling=Sampling(max_tokens=90))
        next(stream)
        return stream


def connect(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(WAIT)
    client.connect(str(path))
    return client


def lines(client: socket.socket) -> Generator[dict[str, Any], None, None]:
    with client.makefile("rb") as file:
        for line in file:
            yield json.loads(line)


def top(store: Path, *options: str) -> Any:
    return RUNNER.invoke(app, ["top", "--store", str(store), *options])
