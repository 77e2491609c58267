"""What a crash can leave, and how it is swept when a store opens.

    agents/<id>/ledger.log.tmp     a new ledger that was never named         deleted
    agents/<id>/                   empty: made, or forgotten, half-way       removed
    agents/<id>/ledger.log         torn last frame     cut when it is next appended to
    kv/<f>/<id>/*.tmp              never named                               deleted
    kv/<f>/<id>/seg-*              not in the manifest                       deleted
    kv/<f>/<id>/manifest.msgpack   cannot be read           set aside, with a warning
    kv/<f>/<id>/, kv/<f>/          empty                                     removed

Files of other names are not ours and are left alone. A step that fails is logged: a
leftover that cannot be deleted must not keep the store from opening.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from kvactors.persistence.atomic import Files
from kvactors.persistence.kv import Key, KvFolders
from kvactors.persistence.naming import TEMP_SUFFIX

__all__ = ["sweep"]

_log = logging.getLogger("kvactors")


def sweep(files: Files, agents: Path, kv: KvFolders) -> None:
    """Remove what a crash left and take stock of the KV. Raises OSError if unreadable.

    Syncs the parent directories too: the process before may have been killed between
    making an entry and making it durable.
    """
    for folder in _folders(agents):
        _attempt(folder, partial(_sweep_agent, files, folder))
    for fingerprint in _folders(kv.root):
        for folder in _folders(fingerprint):
            key = Key(folder.name, fingerprint.name)
            _attempt(folder, partial(_sweep_kv, files, kv, key))
        _attempt(fingerprint, partial(_close_folder, files, fingerprint))
    for root in (agents, kv.root):
        _attempt(root, partial(files.sync_dir, root))


def _folders(root: Path) -> Iterator[Path]:
    yield from sorted(path for path in root.iterdir() if path.is_dir())


def _attempt(path: Path, act: Callable[[], None]) -> None:
    try:
        act()
    except OSError as error:
        _log.warning("could not sweep %s: %s", path, error)


def _sweep_agent(files: Files, folder: Path) -> None:
    for path in sorted(folder.iterdir()):
        if path.name.endswith(TEMP_SUFFIX):
            files.unlink(path)
    if not any(folder.iterdir()):
        files.rmdir(folder)


def _sweep_kv(files: Files, kv: KvFolders, key: Key) -> None:
    try:
        kv.remove_unnamed(key, kv.manifest(key))
        if not any(kv.folder(key).iterdir()):
            files.rmdir(kv.folder(key))
    finally:
        kv.measure(key)


def _close_folder(files: Files, folder: Path) -> None:
    if any(folder.iterdir()):
        files.sync_dir(folder)
    else:
        files.rmdir(folder)
