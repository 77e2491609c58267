"""pykka's own test suite over PooledActor: `python tests/pykka_suite.py [SDIST]`.

Fetches the source of the installed pykka (unless an sdist is named) and what its tests need
into a temporary folder, and runs them with PooledActor in the place of ThreadingActor. Left
out are the tests of a ThreadingActor's own thread. pykka's actors may block on each other, so
these run on threads that allow it.
"""

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

import pykka

from kvactors.actors.dispatcher import Dispatcher, PooledActor
from kvactors.actors.futures import ReplyFuture

OF_ITS_THREAD = "tests/test_threading_actor.py"


class Pooled(PooledActor):
    """A PooledActor with enough threads for actors that wait for each other."""

    dispatcher = Dispatcher("pykka-suite", 4, blocking=True)
    use_daemon_thread = False


def pytest_configure() -> None:
    """As a plugin: be in place before pykka's conftest is imported."""
    pykka.ThreadingActor = Pooled  # type: ignore[misc,assignment]
    pykka.ThreadingFuture = ReplyFuture  # type: ignore[misc]


def main(arguments: list[str]) -> int:
    """Run it; pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        needed = [*pip, "install", "--no-deps", "--target", f"{home}/needed", "pytest-mock"]
        subprocess.run(needed, check=True)
        if not arguments:
            source = [f"pykka=={version('pykka')}", "--no-deps", "--no-binary", "pykka"]
            subprocess.run([*pip, "download", *source, "--dest", folder], check=True)
            arguments = [str(next(home.glob("pykka-*.tar.gz")))]
        with tarfile.open(arguments[0]) as archive:
            archive.extractall(home, filter="data")
        suite = next(path for path in home.glob("pykka-*") if path.is_dir())
        paths = [str(suite), f"{home}/needed", str(Path(__file__).parent), *filter(None, sys.path)]
        options = [
            "-p",
            "pykka_suite",
            "-p",
            "pytest_mock",
            "-q",
            f"--ignore={OF_ITS_THREAD}",
            "tests",
        ]
        run = f"import sys, pytest; sys.path[:0] = {paths!r}; sys.exit(pytest.main({options!r}))"
        return subprocess.run([sys.executable, "-c", run], cwd=suite).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
