"""A disk that takes nothing more, or half: the run ends, and what was kept is gone on with."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from puppet_talk import TALK, open_system

from kvactors.actors.scenarios.diff import differences
from kvactors.actors.scenarios.journal.file import Journal, Record, holds_run
from kvactors.actors.scenarios.journal.reading import read_journal
from kvactors.actors.scenarios.journal.records import Header
from kvactors.actors.scenarios.scenario import Scenario, resume_run

Write = Callable[..., Path]
LABEL = "runs/seed-0.journal"


@contextmanager
def limited() -> Iterator[Callable[[int], None]]:
    """Call what is yielded: from then on no file grows beyond so many bytes. The system takes what
    fits of a write, and refuses the next one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda most: resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("fits", [0, 1, 20])
@pytest.mark.parametrize("at", [1, 4])
def test_a_journal_on_a_full_disk_ends_the_run_and_is_gone_on_with(
    write: Write, tmp_path: Path, at: int, fits: int
) -> None:
    # The journal begins with the whole file: no other file of the run is as long.
    scenario = Scenario.load(write(f"about: {'long ' * 60_000}\n{TALK}"))
    out, seen = tmp_path / "out", list[Record]()
    with open_system(tmp_path / "whole-store") as system:
        [whole] = scenario.run(system, out=tmp_path / "whole")

    with open_system(tmp_path / "store") as system:
        with limited() as limit:

            def fill(_most: int, record: Record) -> None:
                seen.append(record)
                if len(seen) == at:
                    limit((out / LABEL).stat().st_size + fits)

            with pytest.raises(OSError, match=r"too large|took \d+ of"):
                scenario.run(system, out=out, watch=fill)
        kept = read_journal(out / LABEL)[1]
        [run] = resume_run(out, system)

    assert [record.step for record in kept] == [record.step for record in seen]
    assert len(kept) == at
    assert read_journal(out / LABEL)[1][:at] == kept
    assert not list(differences(run, whole))


@pytest.mark.parametrize("fits", [0, 5, 30])
def test_a_header_that_the_disk_does_not_take_is_no_run(tmp_path: Path, fits: int) -> None:
    header = Header("talk", "seed-0", 0, {}, "default", ("anna",), ("first",), 0.0)
    path = tmp_path / "seed-0.journal"

    with limited() as limit:
        limit(fits)
        with pytest.raises(OSError, match=r"too large|took \d+ of"):
            Journal(path, header)

    assert not holds_run(path)
    assert path.stat().st_size == 0
