"""What a crash can leave, and how it is swept. Persistence thread only.

    agents/<id>/ledger.log.tmp     a new ledger that was never named         deleted
    agents/<id>/                   empty: made, or forgotten, half-way       removed
    agents/<id>/ledger.log         torn last frame     cut when it is next appended to
    kv/<f>/<id>/*.tmp              never named                               deleted
    kv/<f>/<id>/seg-*              not in the manifest                       deleted
    kv/<f>/<id>/manifest.msgpack   cannot be read           set aside, with a warning
    kv/<f>/<id>/manifest.msgpack   of a newer version    left alone, with its segments
    kv/<f>/<id>/, kv/<f>/          empty                                     removed

Opening a store only lists the names of folders. An agent's own folders are swept when it
is first read or written, all of them by `Store.sweep`; what is left until then counts as
disk space. Files of other names are not ours and are left alone. A step that fails is
logged: a leftover that cannot be deleted must not keep the store from opening.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from kvactors.persistence.errors import NewerFormat
from kvactors.persistence.files.atomic import Files
from kvactors.persistence.files.naming import TEMP_SUFFIX
from kvactors.persistence.files.reading import is_empty
from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.kv.folders import KvFolders

__all__ = ["settle_names", "sweep_agent"]

_log = logging.getLogger(__name__)


def settle_names(files: Files, agents: Path, kv: KvFolders) -> None:
    """Make the names of all folders below `agents` and of `kv` durable, through `files`, and learn
    them. Raises OSError if unreadable.

    The process before may have been killed between making an entry and making it durable.
    """
    kv.list_names()
    for path in sorted(kv.root.iterdir()):
        if path.is_dir():
            _attempt(path, partial(_close_folder, files, path))
    for root in (agents, kv.root):
        _attempt(root, partial(files.sync_dir, root))


def sweep_agent(files: Files, agents: Path, kv: KvFolders, encoded: str) -> None:
    """Remove, through `files`, what a crash left of the agent with the directory name `encoded`,
    below `agents` and in `kv`. Never raises OSError."""
    _attempt(agents / encoded, partial(_sweep_ledger, files, agents / encoded))
    for key in kv.keys_of(encoded):
        _attempt(kv.folder(key), partial(_sweep_kv, files, kv, key))


def _attempt(path: Path, act: Callable[[], None]) -> None:
    try:
        act()
    except OSError as error:
        _log.warning("could not sweep %s: %s", path, error)


def _sweep_ledger(files: Files, folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        return
    names = os.listdir(folder)
    left = [name for name in names if name.endswith(TEMP_SUFFIX)]
    for name in left:
        files.unlink(folder / name)
    if len(left) == len(names):
        files.rmdir(folder)


def _sweep_kv(files: Files, kv: KvFolders, key: Key) -> None:
    try:
        kv.remove_unnamed(key, kv.manifest(key))
        for folder in (kv.folder(key), kv.folder(key).parent):
            if is_empty(folder):
                files.rmdir(folder)
    except NewerFormat:
        return  # Whoever reads or writes it is told.
    finally:
        kv.measure(key)


def _close_folder(files: Files, folder: Path) -> None:
    if is_empty(folder):
        files.rmdir(folder)
    else:
        files.sync_dir(folder)
