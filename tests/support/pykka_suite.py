"""pykka's own test suite over PooledActor, as `.ci/run` does it:

    uv run --with pip --with pytest-mock python tests/support/pykka_suite.py [SDIST]

Fetches the source of the installed pykka into a temporary folder (unless an sdist is named) and
runs its tests with PooledActor in the place of ThreadingActor. Left out are the tests of a
ThreadingActor's own thread. pykka's actors may block on each other, so these run on threads
that allow it. A test that runs over other actors fails, and so does a run in which none ran over
ours. Where the source cannot be fetched it says so, and that is no failure.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pykka
import pytest

from kvactors.actors.runtime.dispatcher import Dispatcher, PooledActor
from kvactors.actors.runtime.futures import ReplyFuture

OF_ITS_THREAD = "tests/test_threading_actor.py"


class Pooled(PooledActor):
    """A PooledActor with enough threads for actors that wait for each other."""

    dispatcher = Dispatcher("pykka-suite", 4, blocking=True)
    use_daemon_thread = False


used: dict[bool, int] = {True: 0, False: 0}
"""How many tests had our actors as their runtime, and how many had others."""


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """As a plugin: be in place before pykka's conftest is imported, which takes the names. (By
    `pytest_configure` it has been.)"""
    pykka.ThreadingActor = Pooled  # type: ignore[misc,assignment]
    pykka.ThreadingFuture = ReplyFuture  # type: ignore[assignment, misc]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Function) -> None:
    """A test whose actors or futures are not ours proves nothing of them: it fails."""
    runtime: Any = item.funcargs.get("runtime")
    if runtime is not None:
        actor, future = runtime.actor_class, runtime.future_class
        ours = issubclass(actor, PooledActor) and issubclass(future, ReplyFuture)
        used[ours] += 1
        assert ours, f"this test runs over {actor} and {future}, not over ours"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run without any test of our actors is a failure as well."""
    if (used[False] or not used[True]) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how many there were."""
    terminalreporter.write_line(
        f"{used[True]} tests ran over PooledActor, {used[False]} over other actors"
    )


def main(arguments: list[str]) -> int:
    """Run it; pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        sdist = Path(arguments[0]) if arguments else _fetch(Path(folder))
        if sdist is None:
            # Where all must hold, what did not run does not.
            return int(bool(os.environ.get("CI")))
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        suite = next(path for path in Path(folder).glob("pykka-*") if path.is_dir())
        paths = [str(suite), str(Path(__file__).parent), *filter(None, sys.path)]
        plugins = ["-p", "pykka_suite", "-p", "pytest_mock"]
        options = [*plugins, "-q", f"--ignore={OF_ITS_THREAD}", "tests"]
        run = f"import sys, pytest; sys.path[:0] = {paths!r}; sys.exit(pytest.main({options!r}))"
        return subprocess.run([sys.executable, "-c", run], cwd=suite).returncode


def _fetch(folder: Path) -> Path | None:
    """The source of the pykka that is installed, or None, with the reason printed."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    source = [f"pykka=={version('pykka')}", "--no-deps", "--no-binary", "pykka"]
    done = subprocess.run([*pip, *source, "--dest", str(folder)], stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"skipped: pykka's source cannot be fetched: {done.stderr.strip()[-500:]}")
        return None
    return next(folder.glob("pykka-*.tar.gz"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
