"""The key of an encrypted store, for the command line: a file that `$KVACTORS_KEY_FILE` names."""

import os
from pathlib import Path

from kvactors.core.errors import InvalidConfig
from kvactors.persistence.files.encryption import KEY_BYTES

__all__ = ["stored_key"]

VARIABLE = "KVACTORS_KEY_FILE"


def stored_key() -> bytes | None:
    """The 32 bytes in the file, written as they are or as 64 hex digits; None without a file.

    Raises InvalidConfig for a file with anything else, and OSError.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    path = Path(named).expanduser()
    content = path.read_bytes()
    if len(content) == KEY_BYTES:
        return content
    try:
        key = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidConfig(
            f"${VARIABLE}: {path} must hold {KEY_BYTES} bytes or {2 * KEY_BYTES} hex digits; it "
            f"has {len(content)} bytes"
        )
    return key
