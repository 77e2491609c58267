"""The file of API keys, and what becomes of it while a server runs."""

import logging
import os
from pathlib import Path

import pytest

from kvactors.actors.frontends.server.web.keys import KeyFile
from kvactors.core.errors import InvalidConfig

ANN, BEN, EVE = ("a" * 32, "b" * 32, "e" * 32)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    written(path, ANN, BEN)
    return path


def written(path: Path, *keys: str, mode: int = 0o600) -> None:
    """Another file in its place, as editors and `mv` do it."""
    new = path.with_suffix(".new")
    new.write_text("\n".join(["# of clients", *keys]))
    new.chmod(mode)
    new.replace(path)


def test_a_key_that_is_added_may_enter_and_one_that_is_taken_out_may_not(path: Path) -> None:
    keys = KeyFile(path)
    assert keys() == {ANN, BEN}

    written(path, BEN, EVE)

    assert keys() == {BEN, EVE}


def test_the_mark_that_some_editors_begin_a_file_with_is_of_no_key(path: Path) -> None:
    path.write_text(f"\ufeff{ANN}\n{BEN}\n", encoding="utf-8")

    assert KeyFile(path)() == {ANN, BEN}


def test_a_file_that_others_can_read_lets_nobody_new_in_and_says_so_once(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KeyFile(path)
    written(path, BEN, EVE, mode=0o644)

    with caplog.at_level(logging.ERROR):
        assert keys() == {BEN}
        assert keys() == {BEN}
    assert [record.message for record in caplog.records] == [
        f"the API keys: {path} can be read by others: chmod 600 {path}"
    ]

    path.chmod(0o600)
    assert keys() == {BEN, EVE}


@pytest.mark.parametrize("left", [(), ("short",)])
def test_a_file_without_a_key_lets_nobody_in(path: Path, left: tuple[str, ...]) -> None:
    keys = KeyFile(path)

    written(path, *left)

    (nobodys,) = keys()
    assert nobodys not in (ANN, BEN, *left)


def test_a_file_that_is_just_being_written_changes_nothing_yet(path: Path) -> None:
    keys = KeyFile(path)
    path.write_bytes(b"")

    assert keys() == {ANN, BEN}
    path.write_text(EVE)
    assert keys() == {EVE}


def test_a_file_that_is_no_text_is_refused(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = KeyFile(path)
    path.write_bytes(b"# Caf\xe9\n" + BEN.encode())

    with caplog.at_level(logging.ERROR):
        assert keys() == {BEN}
    assert "is no UTF-8" in caplog.text


def test_while_there_is_no_file_keys_stay_as_they_were(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = KeyFile(path)
    os.remove(path)

    with caplog.at_level(logging.ERROR):
        assert keys() == keys() == {ANN, BEN}
    assert len(caplog.records) == 1
    written(path, EVE)
    assert keys() == {EVE}


@pytest.mark.parametrize(("kept", "mode"), [((ANN,), 0o644), ((), 0o600), (("e" * 31,), 0o600)])
def test_a_server_does_not_begin_with_a_file_that_is_wrong(
    path: Path, kept: tuple[str, ...], mode: int
) -> None:
    written(path, *kept, mode=mode)

    with pytest.raises(InvalidConfig):
        KeyFile(path)
