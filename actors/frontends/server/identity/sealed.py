"""Text in the database of clients: sealed where the store is. The thread of the index."""

from kvactors.persistence.files.encryption import EncryptionKey, Sealing

__all__ = ["Sealed"]

_CONTEXT = b"clients.db"


class Sealed:
    """Writes and reads texts, sealed with a `key` if there is one. Raises EncryptionError."""

    def __init__(self, key: EncryptionKey | None = None) -> None:
        self._sealing = None if key is None else Sealing(key)

    def write(self, text: str) -> str | bytes:
        """What stands in the database for a text."""
        if self._sealing is None:
            return text
        return self._sealing.seal_bytes(_CONTEXT, text.encode())

    def read(self, written: str | bytes) -> str:
        """The text again. Raises BrokenSeal for that of another key."""
        if self._sealing is None or isinstance(written, str):
            return written if isinstance(written, str) else ""
        return self._sealing.open_bytes(_CONTEXT, written).decode()
