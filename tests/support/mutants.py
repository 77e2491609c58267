"""Mutants: the product with one bug each, in a copy, under the tests that should kill it.

    python tests/support/mutants.py                    those that the day draws
    KVACTORS_FULL=1 python tests/support/mutants.py    all of them
    python tests/support/mutants.py join manifest      those that have one of these words

They stand in `tests/mutants/`, a list for each folder of the product. A mutant is killed if its
tests can run and one of them fails. Status 1: one lives, or is no mutant any more, since its text
does not stand in the source exactly once.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from samples import DAY, FULL, sample_of

__all__ = ["Mutant", "Verdict", "Workshop", "chosen", "main", "read_mutants"]

ROOT = Path(__file__).parents[2]
PER_DAY = 8
# What is not of the source, or would be written while it is copied.
LEFT_OUT = (".*_cache", ".git", ".hypothesis", ".venv", "*.egg-info", "__pycache__")
# A test that hangs fails by its own limit; this is for what even that does not end.
SECONDS = 600
OPTIONS = [
    "-n0",
    "-x",
    "-q",
    "-rfE",
    "--tb=line",
    "--show-capture=no",
    "-p",
    "no:cacheprovider",
    "--timeout=150",
]


@dataclass(frozen=True, slots=True)
class Mutant:
    """In a file of the product, one `old` text becomes `new`; `killed_by` are ids of tests. If it
    `waits` they fail only when their time is up: it is in no day's sample."""

    title: str
    file: str
    old: str
    new: str
    killed_by: tuple[str, ...]
    waits: bool = False

    def applied(self, root: Path) -> str:
        """The file with the bug. Raises ValueError if its text is not there exactly once."""
        source = (root / self.file).read_text(encoding="utf-8")
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"its text stands {found} times in {self.file}, not once")
        return source.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: the test that `killer` names has killed it, or `trouble` says why
    none did."""

    mutant: Mutant
    seconds: float
    killer: str = ""
    trouble: str = ""

    def __str__(self) -> str:
        outcome = f"killed by {self.killer}" if self.killer else self.trouble.upper()
        return f"{self.seconds:5.1f} s  {self.mutant.file}: {self.mutant.title}\n         {outcome}"


def read_mutants(root: Path = ROOT) -> list[Mutant]:
    """All mutants, by the file that lists them."""
    lists = sorted((root / "tests" / "mutants").glob("*.toml"))
    rows = [row for path in lists for row in tomllib.loads(path.read_text("utf-8"))["mutant"]]
    return [Mutant(**{**row, "killed_by": tuple(row["killed_by"])}) for row in rows]


def chosen(mutants: Sequence[Mutant], words: Sequence[str]) -> list[Mutant]:
    """Those that have one of the `words` in their title or file; without words, the day's."""
    if words:
        return [m for m in mutants if any(word in f"{m.file} {m.title}" for word in words)]
    return sample_of([m for m in mutants if FULL or not m.waits], PER_DAY, "mutants")


class Workshop:
    """A copy of the repository in which mutants are made, one at a time."""

    def __init__(self, root: Path, copy: Path) -> None:
        shutil.copytree(root, copy, symlinks=True, ignore=shutil.ignore_patterns(*LEFT_OUT))
        self.copy = copy
        # By content: a file may change twice within the second that its time counts.
        compiled = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash"]
        subprocess.run([*compiled, str(copy)], check=False, stdout=subprocess.DEVNULL)

    def prove(self, tests: Sequence[str]) -> None:
        """Without a bug all tests pass. Raises ValueError."""
        ended = self._run(tests)
        if ended.returncode != 0:
            raise ValueError(f"without any mutant these tests fail:\n{ended.stdout[-4000:]}")

    def try_one(self, mutant: Mutant) -> Verdict:
        """Make it, run its tests, and put the source back."""
        begin = time.monotonic()

        def verdict(**outcome: str) -> Verdict:
            return Verdict(mutant, time.monotonic() - begin, **outcome)

        try:
            with self._changed(mutant):
                ended = self._run(mutant.killed_by, SECONDS)
        except ValueError as error:
            return verdict(trouble=str(error))
        except subprocess.TimeoutExpired:
            return verdict(trouble=f"its tests took more than {SECONDS} s")
        if ended.returncode == 0:
            return verdict(trouble="it survived")
        lines = ended.stdout.splitlines()
        failed = [line for line in lines if line.startswith(("FAILED tests/", "ERROR tests/"))]
        if ended.returncode != 1 or not failed:
            return verdict(trouble=f"its tests could not run:\n{ended.stdout[-2000:]}")
        return verdict(killer=failed[0].partition(" ")[2].partition(" - ")[0])

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        path, wrong = self.copy / mutant.file, mutant.applied(self.copy)
        right = path.read_text(encoding="utf-8")
        path.write_text(wrong, encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(right, encoding="utf-8")

    def _run(
        self, tests: Sequence[str], timeout: float | None = None
    ) -> "subprocess.CompletedProcess[str]":
        own = {"PYTHONPATH": str(self.copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
        env = {name: value for name, value in os.environ.items() if name != "KVACTORS_FULL"}
        command = [sys.executable, "-m", "pytest", *OPTIONS, f"--rootdir={self.copy}", *tests]
        return subprocess.run(
            command,
            cwd=self.copy,
            env={**env, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )


def main(words: Sequence[str], root: Path = ROOT) -> int:
    """Try those that are `chosen`, and print what became of each; the exit status."""
    every = read_mutants(root)
    mutants = chosen(every, words)
    whose = "" if FULL or words else f", drawn by {DAY}"
    print(f"{len(mutants)} of {len(every)} mutants{whose}", flush=True)
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(root, Path(folder) / "copy")
        workshop.prove(sorted({test for mutant in mutants for test in mutant.killed_by}))
        for mutant in mutants:
            verdicts.append(workshop.try_one(mutant))
            print(verdicts[-1], flush=True)
    alive = [verdict for verdict in verdicts if not verdict.killer]
    print(f"{len(verdicts) - len(alive)} killed, {len(alive)} alive", flush=True)
    return 1 if alive or not mutants else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
