"""A file with the key of an encrypted store. Any thread."""

from pathlib import Path

from kvactors.core.errors import InvalidConfig
from kvactors.persistence.files.encryption import KEY_BYTES

__all__ = ["read_key"]


def read_key(path: Path, who: str) -> bytes:
    """The 32 bytes in the file at `path`, written as they are or as 64 hex digits. Raises
    InvalidConfig, which says `who` named it, for a file with anything else, and OSError."""
    content = path.read_bytes()
    if len(content) == KEY_BYTES:
        return content
    try:
        key = bytes.fromhex(content.decode("ascii"))
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise InvalidConfig(
            f"{who}: {path} must hold {KEY_BYTES} bytes or {2 * KEY_BYTES} hex digits; it "
            f"has {len(content)} bytes"
        )
    return key
