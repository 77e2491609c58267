"""Opening a store: its folders are made, their names are durable, and the key is its own.

Persistence thread only.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from pathlib import Path

from kvactors.persistence.errors import EncryptionMismatch, WrongKey
from kvactors.persistence.files.atomic import Files
from kvactors.persistence.kv.folders import KvFolders
from kvactors.persistence.ledger.folder import Ledgers
from kvactors.persistence.store.recovery import settle_names

__all__ = ["make_folder", "open_folders"]

ASKED = 8
"""Ledgers whose key is looked at."""


def open_folders(files: Files, root: Path, ledgers: Ledgers, kv: KvFolders) -> None:
    """Make what is missing of `ledgers` and `kv` below a locked `root`, through `files`, and learn
    what is there.

    Raises EncryptionMismatch, WrongKey, OSError.
    """
    make_folder(files, ledgers.root)
    make_folder(files, kv.root)
    # Even where they stood: the process that made them may have been killed before it.
    _sync_name(files, root)
    _sync_name(files, kv.root)
    _check_key(root, ledgers)
    settle_names(files, ledgers.root, kv)


def make_folder(files: Files, path: Path) -> None:
    """Make a folder and those above it, durably. Raises OSError."""
    if path.is_dir():
        return
    if not path.parent.is_dir():
        make_folder(files, path.parent)
    # Another process may make it at the same time.
    with suppress(FileExistsError):
        files.mkdir(path)
    if not path.is_dir():
        raise NotADirectoryError(f"{path} is not a directory")
    _sync_name(files, path)


def _sync_name(files: Files, path: Path) -> None:
    # The folder above the store may be passable without being readable.
    with suppress(PermissionError):
        files.sync_dir(path.parent)


def _check_key(root: Path, ledgers: Ledgers) -> None:
    """Raise if the ledgers were written with another key; a few are asked, not one alone."""
    found = set(islice(ledgers.key_ids(), ASKED))
    mine = ledgers.sealing and ledgers.sealing.key_id
    if not found or mine in found:
        return
    if mine is None or None in found:
        raise EncryptionMismatch(root, encrypted=mine is None)
    raise WrongKey(root)
