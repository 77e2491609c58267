"""Segments that several agents hold: one file, a name in each agent's folder.
Persistence thread only.

A segment's name has its token range and the digest of its content, so two agents with
the same beginning under the same model write the same names. What this process wrote or
verified for one agent is linked for the next instead of being written again.
"""

from __future__ import annotations

import errno
from pathlib import Path

from kvactors.persistence.files.atomic import NO_LINKS, Files, temp_path
from kvactors.persistence.kv.disk_usage import Key

__all__ = ["Holders", "link_file"]

_REMEMBERED = 1 << 16


class Holders:
    """Which agent is known to hold a segment. Forgets the oldest; never believed blindly."""

    def __init__(self, root: Path, *, share: bool) -> None:
        self.can_link = True
        """False once the file system has refused to link."""
        self.share = share
        """Whether agents share files at all: saves, and forks."""
        self._root = root
        self._agents: dict[tuple[str, str], str] = {}

    @property
    def links(self) -> bool:
        """Whether a file gets another name, as far as is known, rather than a copy."""
        return self.share and self.can_link

    def note(self, key: Key, name: str) -> None:
        """`key` holds the whole, verified segment `name`."""
        self._agents[key.fingerprint, name] = key.agent
        if len(self._agents) > _REMEMBERED:
            del self._agents[next(iter(self._agents))]

    def find(self, fingerprint: str, name: str, size: int) -> Path | None:
        """A file of `size` bytes called `name`, so with this content, under `fingerprint`, if one
        is known and still there."""
        agent = self._agents.get((fingerprint, name))
        if agent is None or not self.links:
            return None
        path = self._root / fingerprint / agent / name
        try:
            return path if path.lstat().st_size == size else None
        except OSError:
            return None

    def link(self, files: Files, source: Path, target: Path) -> bool:
        """Name `source` `target` too, through `files`; False if only a copy can do. Raises
        OSError."""
        if not self.links:
            return False
        try:
            link_file(files, source, target)
        except OSError as error:
            self.can_link = error.errno not in NO_LINKS
            # Too many names, or the file is gone: this one must be written.
            if error.errno in {*NO_LINKS, errno.EMLINK, errno.ENOENT}:
                return False
            raise
        return True


def link_file(files: Files, source: Path, target: Path) -> None:
    """Name `source` `target` too, through `files`, replacing a leftover of that name. Raises
    OSError."""
    if not target.exists():
        files.link(source, target)
    elif not target.samefile(source):
        files.link(source, temp_path(target))
        files.rename(temp_path(target), target)
