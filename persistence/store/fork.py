"""A new agent with another one's memory: ledger first, then links or copies, then manifests.

Persistence thread only.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from kvactors.persistence.errors import AgentExists, AgentNotStored
from kvactors.persistence.files.atomic import replace_file
from kvactors.persistence.files.naming import MANIFEST_NAME, encode_agent_id
from kvactors.persistence.files.reading import NotAFile, read_file
from kvactors.persistence.kv.disk_usage import Key
from kvactors.persistence.kv.manifest import Entry, Manifest, encode_manifest
from kvactors.persistence.ledger.folder import LedgerState
from kvactors.persistence.ledger.frames import Scan, encode_copy, payload_checksum
from kvactors.persistence.store.parts import StoreParts

__all__ = ["fork"]

_log = logging.getLogger(__name__)


def fork(store: StoreParts, parent_id: str, child_id: str) -> None:
    """Make `child_id` of `parent_id` in `store`: see `Store.fork`, also for what is raised."""
    ledgers, kv = store.ledgers, store.kv
    child = encode_agent_id(child_id)
    if ledgers.has(child) or kv.keys_of(child):
        raise AgentExists(child_id)
    parent = ledgers.load_of(parent_id)
    if parent is None:
        raise AgentNotStored(parent_id)
    try:
        moved = _copy_ledger(store, parent, child_id)
        for key in kv.keys_of(encode_agent_id(parent_id)):
            found = kv.usable(key)
            if found is not None:
                length, checksum = moved[found.ledger_bytes]
                manifest = replace(
                    found, agent_id=child_id, ledger_bytes=length, ledger_checksum=checksum
                )
                _share(store, key, Key(child, key.fingerprint), manifest)
    except BaseException:
        _undo(store, child_id)
        raise


def _undo(store: StoreParts, child_id: str) -> None:
    """Delete what was made of the child. Its KV goes first: a manifest without its ledger would be
    a damaged agent; a ledger without KV is a whole one, only cold."""
    try:
        for key in store.kv.keys_of(encode_agent_id(child_id)):
            store.kv.drop(key)
        store.ledgers.remove(child_id)
    except OSError as error:
        _log.warning(
            "the disk does not delete %r either, whose fork failed (%s): the agent may be there, "
            "with all of its parent's memory; forget it before it is forked again",
            child_id,
            error,
        )


def _copy_ledger(store: StoreParts, parent: Scan, child_id: str) -> dict[int, tuple[int, int]]:
    """Write the child's ledger; where each length of the parent's stands in it, and the
    checksum that a manifest of that length has."""
    ledgers = store.ledgers
    source, path = (ledgers.path(encode_agent_id(name)) for name in (parent.agent_id, child_id))
    data, ends = encode_copy(child_id, parent.frames, source, ledgers.sealing)
    if not path.parent.is_dir():
        ledgers.files.mkdir(path.parent)
    replace_file(ledgers.files, path, data)
    ledgers.files.sync_dir(ledgers.root)
    store.counter.written += len(data)
    view = memoryview(data)
    sums = [payload_checksum(view[start:]) for start in (0, *ends[:-1])]
    ledgers.remember(child_id, LedgerState(len(data), len(ends), sums[-1], parent.records))
    places = zip(parent.frames, ends, sums, strict=True)
    return {0: (0, 0), **{frame.end: (end, checksum) for frame, end, checksum in places}}


def _share(store: StoreParts, source: Key, target: Key, manifest: Manifest) -> None:
    """Link or copy the segments, then commit the manifest."""
    kv = store.kv
    copied = 0 if kv.holders.links else sum(entry.size for entry in manifest.segments)
    if not store.limit.has_room(copied + len(encode_manifest(manifest, kv.sealing))):
        _log.warning(
            "max_disk leaves no room: %r starts without KV under model %s and prefills again",
            manifest.agent_id,
            target.fingerprint[:8],
        )
        return
    folder = kv.folder(target)
    kv.files.mkdir(folder)
    kv.measure(target)
    kept = []
    for entry in manifest.segments:
        if not _share_one(store, source, target, entry):
            break
        kept.append(entry)
    data = encode_manifest(replace(manifest, segments=tuple(kept)), kv.sealing)
    kv.files.sync_dir(folder)
    kv.settle(target, kv.files.sync_dir)
    replace_file(kv.files, folder / MANIFEST_NAME, data)
    store.counter.written += len(data)
    for key in (source, target):
        kv.measure(key)


def _share_one(store: StoreParts, source: Key, target: Key, entry: Entry) -> bool:
    """Give the child one segment; False if the parent has no such file."""
    kv = store.kv
    old, new = (kv.folder(key) / entry.file for key in (source, target))
    if kv.holders.link(kv.files, old, new):
        return True
    try:
        data = read_file(old)
    except (FileNotFoundError, NotAFile):
        return False
    replace_file(kv.files, new, data)
    store.counter.written += len(data)
    return True
