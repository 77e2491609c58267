"""Bytes that wait for the disk: those of saves, and of turns that it has refused."""

__all__ = ["MAX_UNSAVED", "UnsavedBytes"]

MAX_UNSAVED = 512 * 2**20


class UnsavedBytes:
    """Counted against a `limit`. Writers hold their owner's lock; any thread may read.

    `refusal` is what the disk refused of the latest group of saves, in words, or "": the
    persistence actor's to write.
    """

    def __init__(self) -> None:
        self.limit = MAX_UNSAVED
        self.refusal = ""
        self._saving = 0
        self._refused = 0

    @property
    def total(self) -> int:
        """Bytes that wait for the disk."""
        return self._saving + self._refused

    @property
    def over(self) -> bool:
        """Whether more waits than may."""
        return self.total > self.limit

    @property
    def disk_fails(self) -> bool:
        """Whether turns wait in memory that the disk has refused, or it refused KV last."""
        return self._refused > 0 or bool(self.refusal)

    def save(self, nbytes: int) -> None:
        """So many more bytes go to the store; negative: no longer wait."""
        self._saving += nbytes

    def hold_back(self, nbytes: int) -> None:
        """So many bytes of turns could not be written and wait for the disk to come back."""
        self._refused = nbytes

    def accepted(self) -> None:
        """The disk has taken all that it was given last."""
        self.refusal = ""
