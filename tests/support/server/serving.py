"""`kvactors serve` in a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

__all__ = ["COMMAND", "ask", "serving"]

COMMAND = [sys.executable, "-m", "kvactors.actors.cli", "serve"]
WAIT = 120


@contextmanager
def serving(
    store: Path, *options: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server over a `store`, with further `options` and `environment`, and where it is."""
    with subprocess.Popen(
        [*COMMAND, "--store", str(store), "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line + (process.stderr.read() if process.stderr else "")
            yield process, found[0]
        finally:
            process.kill()


def ask(url: str, messages: list[Any], **options: Any) -> httpx.Response:
    """What it answers to a greedy chat."""
    body = {"model": "default", "messages": messages, "max_tokens": 16, "temperature": 0} | options
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=WAIT)
