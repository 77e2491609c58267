"""The journal that is a file: what was appended is there, and only what a crash tore is not."""

import asyncio
from pathlib import Path
from random import Random

import pytest
from filelock import FileLock

from kvactors.actors.cluster.machine.journal import FileJournal, held_alone
from kvactors.persistence.errors import LedgerUnreadable, StoreLocked
from kvactors.persistence.files.atomic import Files
from kvactors.persistence.testing.doubles import FailingFiles, PowerLossFiles

RECORDS = [{"number": number, "what": "a" * number} for number in range(5)]


def journal(folder: Path, files: Files | None = None) -> FileJournal:
    return FileJournal(folder / "journal", "directory", files)


async def append(journal: FileJournal, *records: dict[str, object]) -> None:
    for record in records:
        await journal.append(record)


def test_a_new_one_has_nothing_and_makes_no_file(tmp_path: Path) -> None:
    assert journal(tmp_path).load() == []
    assert not list(tmp_path.iterdir())


def test_what_was_appended_is_there_in_order(tmp_path: Path) -> None:
    asyncio.run(append(journal(tmp_path), *RECORDS))

    again = journal(tmp_path)
    assert again.load() == RECORDS
    asyncio.run(append(again, {"more": True}))
    assert journal(tmp_path).load() == [*RECORDS, {"more": True}]


@pytest.mark.parametrize("seed", range(20))
def test_a_loss_of_power_takes_nothing_that_was_synced(tmp_path: Path, seed: int) -> None:
    files = PowerLossFiles()
    asyncio.run(append(journal(tmp_path, files), *RECORDS))
    files.lose_power(Random(seed))

    assert journal(tmp_path).load() == RECORDS


def test_a_loss_of_power_does_not_take_its_folder(tmp_path: Path) -> None:
    files = PowerLossFiles()
    files.mkdir(tmp_path / "cluster")
    asyncio.run(append(journal(tmp_path / "cluster", files), *RECORDS))
    files.lose_power()

    assert journal(tmp_path / "cluster").load() == RECORDS


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_record_is_cut_and_gone_on_behind(tmp_path: Path, cut: int) -> None:
    asyncio.run(append(journal(tmp_path), *RECORDS))
    path = tmp_path / "journal"
    path.write_bytes(path.read_bytes()[:-cut])

    again = journal(tmp_path)
    assert again.load() == RECORDS[:-1]
    asyncio.run(append(again, {"more": True}))
    assert journal(tmp_path).load() == [*RECORDS[:-1], {"more": True}]


def test_a_byte_that_changed_in_the_middle_is_an_error(tmp_path: Path) -> None:
    asyncio.run(append(journal(tmp_path), *RECORDS))
    path = tmp_path / "journal"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))

    with pytest.raises(LedgerUnreadable):
        journal(tmp_path).load()


def test_behind_an_append_that_failed_the_next_one_is_whole(tmp_path: Path) -> None:
    files = FailingFiles(name="append")
    files.armed = False
    mine = journal(tmp_path, files)
    asyncio.run(append(mine, RECORDS[0]))
    files.arm()
    with pytest.raises(OSError, match="No space"):
        asyncio.run(append(mine, RECORDS[1]))
    files.armed = False

    asyncio.run(append(mine, RECORDS[2]))

    assert journal(tmp_path).load() == [RECORDS[0], RECORDS[2]]


@pytest.mark.parametrize("at", range(4))
def test_a_replacement_that_fails_leaves_the_old_records(tmp_path: Path, at: int) -> None:
    asyncio.run(append(journal(tmp_path), *RECORDS))
    files = FailingFiles(at=at)
    mine = journal(tmp_path, files)
    assert mine.load() == RECORDS

    with pytest.raises(OSError, match="No space"):
        asyncio.run(mine.replace(RECORDS[3:]))

    # The last of the operations syncs a name that is there already.
    assert journal(tmp_path).load() == (RECORDS if at < 3 else RECORDS[3:])


@pytest.mark.parametrize("kept", [RECORDS[3:], [*RECORDS, *RECORDS]], ids=["shorter", "longer"])
def test_behind_a_replacement_whose_name_was_not_synced_the_next_append_is_whole(
    tmp_path: Path, kept: list[dict[str, object]]
) -> None:
    files = FailingFiles(name="sync_dir")
    files.armed = False
    mine = journal(tmp_path, files)
    asyncio.run(append(mine, *RECORDS))
    files.arm()
    with pytest.raises(OSError, match="No space"):
        asyncio.run(mine.replace(kept))
    files.armed = False

    asyncio.run(append(mine, {"more": True}))

    assert journal(tmp_path).load() == [*kept, {"more": True}]


def test_appends_at_once_stand_one_behind_the_other(tmp_path: Path) -> None:
    mine = journal(tmp_path)

    async def all_at_once() -> None:
        await asyncio.gather(*(mine.append(record) for record in RECORDS))

    asyncio.run(all_at_once())

    assert journal(tmp_path).load() == RECORDS


def test_a_second_directory_over_a_journal_is_refused_and_one_that_ends_is_waited_for(
    tmp_path: Path,
) -> None:
    other = FileLock(tmp_path / "store.lock")

    async def ends() -> None:
        waiting = asyncio.create_task(held_alone(tmp_path))
        await asyncio.sleep(0)
        other.release()
        (await waiting).release()

    with other, pytest.raises(StoreLocked, match="is open in another process"):
        asyncio.run(held_alone(tmp_path, patience=0))
    other.acquire()
    asyncio.run(ends())
