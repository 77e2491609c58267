"""The key of an encrypted store, for the command line: a file that `$KVACTORS_KEY_FILE` names."""

import os
from pathlib import Path

from kvactors.persistence.files.home import expanded
from kvactors.persistence.files.key_file import read_key

__all__ = ["VARIABLE", "key_file", "stored_key"]

VARIABLE = "KVACTORS_KEY_FILE"


def key_file() -> Path | None:
    """Which it is, if there is one."""
    named = os.environ.get(VARIABLE)
    return expanded(named) if named else None


def stored_key() -> bytes | None:
    """The key in it; None without a file. Raises InvalidConfig for a file that holds none, and
    OSError."""
    path = key_file()
    return None if path is None else read_key(path, f"${VARIABLE}")
