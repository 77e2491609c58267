"""Python in a process of its own."""

import os
import subprocess
import sys
import textwrap

__all__ = ["ends", "run_child"]


def run_child(code: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """What became of this code, run with `args` and more of an `environment`; it may fail."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


def ends(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether it ends by itself within so long; else it is killed."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return False
    return True
