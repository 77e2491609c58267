"""A disk that takes nothing more, or half: the run ends, and what was kept is gone on with."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from puppet_talk import TALK, open_system

from kvactors.actors.scenarios.diff import differences
from kvactors.actors.scenarios.journal.reading import read_journal
from kvactors.actors.scenarios.scenario import Scenario, resume_run

Write = Callable[..., Path]
LABEL = "runs/seed-0.journal"


class FullFile:
    """A file of a disk that is full at its write number `at`: `half` of that is taken, or none."""

    def __init__(self, file: Any, at: int, *, half: bool) -> None:
        self._file = file
        self._left = at
        self._half = half

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> int:
        self._left -= 1
        if self._left == 0 and not self._half:
            raise OSError(errno.ENOSPC, "no space left on device")
        written: int = self._file.write(data[: len(data) // 2] if self._left == 0 else data)
        return written


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_journal_on_a_full_disk_ends_the_run_and_is_gone_on_with(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, *, half: bool
) -> None:
    scenario, out, opened = Scenario.load(write(TALK)), tmp_path / "out", Path.open

    def full(path: Path, mode: str = "r", **given: Any) -> Any:
        file = opened(path, mode, **given)
        # The first write is the header's, into a file of its own.
        number = {"xb": at, "r+b": at - 1}.get(mode)
        mine = path.suffix == ".journal" and number is not None
        return FullFile(file, number or 0, half=half) if mine else file

    with open_system(tmp_path / "whole-store") as system:
        [whole] = scenario.run(system, out=tmp_path / "whole")
    with open_system(tmp_path / "store") as system:
        monkeypatch.setattr(Path, "open", full)
        with pytest.raises(OSError, match=r"space|took \d+ of"):
            scenario.run(system, out=out)
        monkeypatch.setattr(Path, "open", opened)
        kept = read_journal(out / LABEL)[1] if at > 1 else []
        size = (out / LABEL).stat().st_size
        [run] = resume_run(out, system)

    assert len(kept) == max(0, at - 2)
    assert at > 1 or size == 0
    assert read_journal(out / LABEL)[1][: len(kept)] == kept
    assert not list(differences(run, whole))
