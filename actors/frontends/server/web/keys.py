"""The file of API keys: one a line, readable by its owner alone, read anew when it changes."""

import threading
from pathlib import Path

from kvactors.core.errors import InvalidConfig

__all__ = ["KeyFile"]

LEAST_LENGTH = 16


class KeyFile:
    """The keys of a file. Any thread. Raises InvalidConfig, OSError at the beginning; a change that
    cannot be read leaves the keys as they were."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen = 0
        self._keys = frozenset[str]()
        self._read()

    def __call__(self) -> frozenset[str]:
        """The keys that count now."""
        with self._lock:
            try:
                self._read()
            except (OSError, InvalidConfig):
                return self._keys
            return self._keys

    def _read(self) -> None:
        state = self._path.stat()
        if state.st_mtime_ns == self._seen:
            return
        if state.st_mode & 0o077:
            raise InvalidConfig(f"{self._path} can be read by others: chmod 600 {self._path}")
        lines = [line.strip() for line in self._path.read_text(encoding="utf-8").splitlines()]
        keys = frozenset(line for line in lines if line and not line.startswith("#"))
        if not keys or min(map(len, keys)) < LEAST_LENGTH:
            raise InvalidConfig(
                f"{self._path} must hold one key a line, each of {LEAST_LENGTH} characters or more"
            )
        self._seen, self._keys = state.st_mtime_ns, keys
