"""The folder `kv/`: reading, and setting aside. Persistence thread only.

Everything in it is a cache of the ledgers. What is bad is set aside: renamed to
`<name>.bad` beside it, with a warning that names the file; `forget`, eviction and
`kvactors store gc` delete such files. What a newer version wrote is neither used nor
touched.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from kvactors.core.cache.segment import Segment
from kvactors.persistence.errors import NewerFormat, SegmentUnreadable, untraced
from kvactors.persistence.files.atomic import Files, replace_file
from kvactors.persistence.files.encryption import Sealing
from kvactors.persistence.files.naming import (
    BAD_SUFFIX,
    MANIFEST_NAME,
    SEGMENT_NAME,
    TEMP_SUFFIX,
    encode_agent_id,
)
from kvactors.persistence.files.reading import is_empty, is_linked
from kvactors.persistence.files.segment import read_segment
from kvactors.persistence.kv.disk_usage import DiskUsage, Key, measure_folder
from kvactors.persistence.kv.manifest import Entry, Manifest, encode_manifest, read_manifest
from kvactors.persistence.kv.sharing import Holders
from kvactors.persistence.ledger.frames import Mark

__all__ = ["KvFolders"]

_log = logging.getLogger(__name__)


class KvFolders:
    """All KV of a store, below `root`, written through `files`. Persistence thread only.

    `sealing`: None where the store is not encrypted. `share`: link what another agent has.
    """

    def __init__(
        self,
        files: Files,
        root: Path,
        sealing: Sealing | None,
        *,
        share: bool,
    ) -> None:
        self.files = files
        self.root = root
        self.sealing = sealing
        self.holders = Holders(root, share=share)
        self._by_agent: dict[str, set[str]] = {}
        self.newer: dict[Key, NewerFormat] = {}
        """What a newer version wrote."""
        self.settled: set[Key] = set()
        """Whose folder's own name is durable."""

    def folder(self, key: Key) -> Path:
        """Where a key's files stand."""
        return self.root / key.fingerprint / key.agent

    def list_names(self) -> None:
        """Learn which agents have a folder, without looking into it. Raises OSError."""
        for fingerprint in _folder_names(self.root):
            for agent in _folder_names(self.root / fingerprint):
                self._by_agent.setdefault(agent, set()).add(fingerprint)

    def keys_of(self, encoded: str) -> list[Key]:
        """The KV that an agent has, by fingerprint."""
        return [Key(encoded, name) for name in sorted(self._by_agent.get(encoded, ()))]

    def agents(self) -> list[str]:
        """Encoded ids of the agents that have a KV folder."""
        return sorted(self._by_agent)

    @cached_property
    def disk(self) -> DiskUsage:
        """What every folder costs; all are measured when it is first asked for. One that cannot be
        read counts as nothing: it is no other agent's matter."""
        found = DiskUsage()
        for agent in self.agents():
            for key in self.keys_of(agent):
                try:
                    found.note(key, measure_folder(self.folder(key)))
                except OSError as error:
                    _log.warning("the size of %s is not known: %s", self.folder(key), error)
        return found

    def manifest(self, key: Key) -> Manifest | None:
        """The commit record, or None; one that cannot be used is set aside.

        Raises NewerFormat, OSError, and SegmentUnreadable for a folder that is a symbolic
        link, through which another agent's files could be changed.
        """
        path = self.folder(key) / MANIFEST_NAME
        if is_linked(self.folder(key)):
            raise SegmentUnreadable(f"{self.folder(key)} is a symbolic link: remove it")
        if key in self.newer:
            raise self.newer[key]
        try:
            found = read_manifest(path, self.sealing)
            if found is None:
                return None
            if (encode_agent_id(found.agent_id), found.fingerprint) != key:
                raise SegmentUnreadable(f"manifest: it belongs to {found.agent_id!r}")
        except NewerFormat as error:
            self.newer[key] = error
            raise
        except SegmentUnreadable as error:
            self._set_aside(path, str(error))
            return None
        return found

    def usable(self, key: Key) -> Manifest | None:
        """`manifest`, and None, with a warning, for one that must not be touched."""
        try:
            return self.manifest(key)
        except (NewerFormat, SegmentUnreadable) as error:
            _log.warning("%s; its tokens will be prefilled again", error)
            untraced(error)
            return None

    def marks(self, encoded: str) -> list[Mark]:
        """What the agent's manifests say about its ledger."""
        marks = []
        for key in self.keys_of(encoded):
            found = self.usable(key)
            if found is not None:
                name = f"kv/{key.fingerprint}/{key.agent}/{MANIFEST_NAME}"
                marks.append(Mark(found.ledger_bytes, found.ledger_checksum, name))
        return marks

    def read(self, agent_id: str, fingerprint: str, *, used: bool) -> tuple[Segment, ...]:
        """Every usable segment of `agent_id` under `fingerprint` from token 0 on; what is bad ends
        it and is set aside. `used`: note it."""
        key = Key(encode_agent_id(agent_id), fingerprint)
        found = self.usable(key)
        if found is None or found.agent_id != agent_id:
            return ()
        segments: list[Segment] = []
        for entry in found.segments:
            try:
                segment = self._read_one(key, entry)
            except NewerFormat as error:
                _log.warning("%s; its tokens will be prefilled again", error)
                self.newer[key] = untraced(error)
                return ()
            except OSError as error:
                # Too many open files, a network's disk: it may be read the next time.
                _log.warning("KV of %r is read up to token %d: %s", agent_id, entry.start, error)
                break
            if segment is None:
                self._keep_first(key, found, len(segments))
                break
            segments.append(segment)
        if used:
            self._touch(key)
        return tuple(segments)

    def _touch(self, key: Key) -> None:
        """Note the use of a key, on disk too: the order of eviction outlives the process."""
        with suppress(OSError):
            self.files.touch(self.folder(key) / MANIFEST_NAME)
        if "disk" in self.__dict__:
            self.disk.touch(key)

    def _read_one(self, key: Key, entry: Entry) -> Segment | None:
        path = self.folder(key) / entry.file
        try:
            segment = read_segment(path, entry.size, entry.digest, self.sealing)
            if (segment.start, segment.end) != (entry.start, entry.end):
                raise SegmentUnreadable(f"it holds tokens [{segment.start}, {segment.end})")
        except FileNotFoundError:
            _log.warning("KV segment %s is missing; its tokens will be prefilled again", path)
            return None
        except SegmentUnreadable as error:
            self._set_aside(path, str(error))
            return None
        self.holders.note(key, entry.file)
        return segment

    def _set_aside(self, path: Path, reason: str) -> None:
        bad = path.with_name(path.name + BAD_SUFFIX)
        _log.warning(
            "cannot use %s: %s. It is set aside as %s; its tokens will be prefilled again",
            path,
            reason,
            bad.name,
        )
        try:
            self.files.rename(path, bad)
        except OSError as error:
            _log.warning("could not set %s aside: %s", path, error)

    def _keep_first(self, key: Key, found: Manifest, count: int) -> None:
        """Let the manifest end before a bad segment, so that the next save continues there."""
        kept = replace(found, segments=found.segments[:count])
        try:
            data = encode_manifest(kept, self.sealing)
            replace_file(self.files, self.folder(key) / MANIFEST_NAME, data)
            self.remove_unnamed(key, kept)
            self.measure(key)
        except OSError as error:
            _log.warning("could not shorten the manifest in %s: %s", self.folder(key), error)

    def remove_unnamed(self, key: Key, manifest: Manifest | None) -> None:
        """Delete temporary files, and segments that the (durable) manifest does not name."""
        named = {entry.file for entry in manifest.segments} if manifest else set()
        for name in sorted(os.listdir(self.folder(key))):
            orphan = SEGMENT_NAME.fullmatch(name) and name not in named
            if orphan or name.endswith(TEMP_SUFFIX):
                self.files.unlink(self.folder(key) / name)

    def remove_bad(self, key: Key) -> None:
        """Delete what was set aside, and the folder if nothing else is in it. Raises OSError."""
        folder = self.folder(key)
        for name in sorted(os.listdir(folder)):
            if name.endswith(BAD_SUFFIX):
                self.files.unlink(folder / name)
        if is_empty(folder):
            self.drop(key)
        else:
            self.measure(key)

    def measure(self, key: Key) -> None:
        """Take a folder's size and age from the disk; forgets one that is gone."""
        if self.folder(key).is_dir():
            self._by_agent.setdefault(key.agent, set()).add(key.fingerprint)
        else:
            # One that is made anew has a name that is to be made durable again.
            self.settled.discard(key)
            left = self._by_agent.get(key.agent, set())
            left.discard(key.fingerprint)
            if not left:
                self._by_agent.pop(key.agent, None)
        if "disk" in self.__dict__:
            self.disk.note(key, measure_folder(self.folder(key)))

    def drop(self, key: Key) -> None:
        """Delete all of a key's KV, manifest first and durably. Raises OSError."""
        self.newer.pop(key, None)
        try:
            if self.folder(key).is_dir():
                self._delete(self.folder(key))
        finally:
            self.measure(key)

    def _delete(self, folder: Path) -> None:
        paths = sorted(folder.iterdir())
        # Segments last: without a manifest, what a crash leaves of them is swept.
        for path in paths:
            if not SEGMENT_NAME.fullmatch(path.name):
                self.files.unlink(path)
        self.files.sync_dir(folder)
        for path in paths:
            if SEGMENT_NAME.fullmatch(path.name):
                self.files.unlink(path)
        self.files.rmdir(folder)
        if is_empty(folder.parent):
            self.files.rmdir(folder.parent)

    def settle(self, key: Key, sync: Callable[[Path], None]) -> None:
        """Make a folder's own name durable by `sync`, once; raises OSError."""
        if key not in self.settled:
            sync(self.folder(key).parent)
            sync(self.root)
            self.settled.add(key)


def _folder_names(root: Path) -> list[str]:
    with os.scandir(root) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
