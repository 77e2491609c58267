"""What a journal says of a record, and what one of before says."""

import struct
from pathlib import Path

import msgpack  # type: ignore[import-untyped]
import pytest
from runs import make_run

from kvactors.actors.scenarios.journal.file import Journal, read_frames
from kvactors.actors.scenarios.journal.records import Failure

FAILED = Failure(9, "eve", "first", 2, "left", "ContextExceeded", "full")
PROBED = Failure(9, "eve", "first", 2, "", "ContextExceeded", "full", 0, "4711", False, "first", 1)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal", make_run().header)


@pytest.mark.parametrize("failure", [FAILED, PROBED])
def test_a_failure_is_read_as_it_was(journal: Journal, failure: Failure) -> None:
    journal.append(failure)
    journal.close()

    assert list(read_frames(journal.path, behind=1)) == [failure]


def test_a_failure_of_no_probe_has_the_bytes_that_it_had_before_probes_said_what_they_expect(
    journal: Journal,
) -> None:
    begin = journal.path.stat().st_size

    journal.append(FAILED)
    journal.close()

    payload = journal.path.read_bytes()[begin + struct.calcsize("<III") :]
    assert msgpack.unpackb(payload) == [2, 9, "eve", "first", 2, "left", "ContextExceeded", "full"]
