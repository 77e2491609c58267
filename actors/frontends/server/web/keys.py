"""The file of API keys: one a line, readable by its owner alone, read anew when it changes."""

import logging
import secrets
import threading
import time
from pathlib import Path

from kvactors.core.errors import InvalidConfig

__all__ = ["KeyFile"]

logger = logging.getLogger(__name__)

# A key's hash, which names folders, could be turned back into one of 16.
LEAST_LENGTH = 32
# Seconds in which an empty file is one that is being written.
WRITTEN = 1.0


class KeyFile:
    """The keys of a file. Any thread. Raises InvalidConfig, OSError at the beginning; a change that
    is refused, as one that others can read, is logged and lets nobody in: who was taken out is out
    all the same. While there is no file to read, keys stay as they were."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._seen = (0, 0)
        self._told = ""
        self._keys = frozenset[str]()
        self._read()

    def __call__(self) -> frozenset[str]:
        """The keys that count now."""
        with self._lock:
            try:
                self._read()
            except (OSError, InvalidConfig) as error:
                if str(error) != self._told:
                    logger.error("the API keys: %s", error)
                self._told = str(error)
            return self._keys

    def _read(self) -> None:
        state = self._path.stat()
        # A change of who may read it is one, too.
        seen = (state.st_mtime_ns, state.st_ctime_ns)
        if seen == self._seen:
            return
        data = self._path.read_bytes()
        if not data and self._keys and time.time() - state.st_mtime < WRITTEN:
            # It is just being written.
            return
        text = data.decode("utf-8-sig", "replace")
        lines = [line.strip() for line in text.splitlines()]
        keys = frozenset(line for line in lines if line and not line.startswith("#"))
        fault = ""
        if "\ufffd" in text:
            fault = f"{self._path} is no UTF-8"
        elif state.st_mode & 0o077:
            fault = f"{self._path} can be read by others: chmod 600 {self._path}"
        elif not keys or min(map(len, keys)) < LEAST_LENGTH:
            fault = (
                f"{self._path} must hold one key a line, each of {LEAST_LENGTH} characters or more"
            )
        # No keys at all would let everybody in.
        self._keys = (self._keys & keys or frozenset((secrets.token_hex(),))) if fault else keys
        if fault:
            raise InvalidConfig(fault)
        self._seen, self._told = seen, ""
