"""Python in a process of its own."""

import subprocess
import sys
import textwrap

__all__ = ["run_child"]


def run_child(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    """What became of this code, run with `args`; it may fail."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
