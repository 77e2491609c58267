"""Encryption at rest: AES-256-GCM over pieces, each object under a key of its own.
Pure: any thread.

A sealed object is

    magic "KVAS" | version u8 | key id (8 bytes) | salt (16 bytes) | pieces

The key of an object is a keyed BLAKE2b of its salt, so nonces can be plain counters: piece i
has the nonce (i, whether it is the last), which is why none can be left out, moved or cut off.
Each piece is PIECE bytes of plain text (the last may be shorter) and a tag of 16 bytes. The
context, which is authenticated and not stored, says what the object is and whose: one that is
put in another's place does not open. A later version may change all but magic and version.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from io import BytesIO
from os import urandom
from pathlib import Path
from typing import Any, BinaryIO

from kvactors.persistence.errors import EncryptionError, NewerFormat
from kvactors.persistence.files.atomic import Buffer

__all__ = [
    "KEY_BYTES",
    "BrokenSeal",
    "EncryptionKey",
    "SealedReader",
    "Sealing",
    "key_id_of",
    "refuse_newer",
]

EncryptionKey = bytes | Callable[[], bytes]
"""32 bytes, or a function that returns them."""

VERSION = 1
PIECE = 1 << 20
_MAGIC = b"KVAS"
_HEAD = struct.Struct("<4sB8s16s")
_NONCE = struct.Struct(">QI")
_TAG = 16
KEY_BYTES = 32


class BrokenSeal(ValueError):
    """Not sealed with this key for this place, or altered since."""


class Sealing:
    """Seals and opens with one key. Immutable; any thread."""

    def __init__(self, key: EncryptionKey) -> None:
        """Raises EncryptionError for a key of another length or without `cryptography`, and
        where a callable raises."""
        try:
            secret = key() if callable(key) else key
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise EncryptionError(f"the callable for the encryption key raised {reason}") from error
        if not isinstance(secret, bytes | bytearray) or len(secret) != KEY_BYTES:
            raise EncryptionError(
                f"an encryption key is {KEY_BYTES} bytes, or a callable that returns them: "
                "make one with `secrets.token_bytes(32)`, and keep it"
            )
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise EncryptionError(
                "encryption needs the package `cryptography`: pip install 'kvactors[crypto]'"
            ) from error
        self._aead: Callable[[bytes], Any] = AESGCM
        self._secret = bytes(secret)
        self.key_id = self._derive(b"id", b"", 8)
        """Tells keys apart without telling them."""

    def __repr__(self) -> str:
        return "Sealing(...)"

    def _derive(self, purpose: bytes, salt: bytes, size: int) -> bytes:
        return blake2b(salt, key=self._secret, person=b"kva " + purpose, digest_size=size).digest()

    def content_name(self, digest: str) -> str:
        """A name for content that reveals nothing of it: 32 hex digits from a hex digest."""
        return self._derive(b"content", digest.encode(), 16).hex()

    def seal(
        self, context: bytes, chunks: Iterable[Buffer], salt: bytes | None = None
    ) -> Iterator[bytes]:
        """The sealed object, `chunks` bound to their `context`, in chunks. `salt`: 16 bytes that no
        other content has under this key; None draws them."""
        salt = urandom(16) if salt is None else salt
        yield _HEAD.pack(_MAGIC, VERSION, self.key_id, salt)
        aead = self.aead_of(salt)
        index, piece = 0, b""
        for following in _pieces(chunks):
            if index:
                yield aead.encrypt(_NONCE.pack(index - 1, 0), piece, context)
            index, piece = index + 1, following
        yield aead.encrypt(_NONCE.pack(max(index, 1) - 1, 1), piece, context)

    def seal_bytes(self, context: bytes, plain: bytes) -> bytes:
        """A small object, sealed."""
        return b"".join(self.seal(context, [plain]))

    def seal_same(self, context: bytes, plain: bytes) -> bytes:
        """A small object, sealed into the same bytes each time: its salt is a keyed hash of content
        and `context`. Tells that two are the same, and nothing else."""
        salt = self._derive(b"same", b"%d " % len(context) + context + plain, 16)
        return b"".join(self.seal(context, [plain], salt))

    def open_bytes(self, context: bytes, sealed: bytes) -> bytes:
        """What was sealed. Raises BrokenSeal."""
        reader = SealedReader(self, context, BytesIO(sealed), len(sealed))
        # One byte more than there is: so the last piece is opened even if it is empty.
        return reader.read(reader.size + 1)

    def aead_of(self, salt: bytes) -> Any:
        """AEAD of the object with this salt."""
        return self._aead(self._derive(b"object", salt, KEY_BYTES))

    @staticmethod
    def sealed_size(plain: int) -> int:
        """Bytes of an object whose plain text has `plain` bytes."""
        return _HEAD.size + plain + _TAG * max(1, -(-plain // PIECE))


class SealedReader:
    """Opens, by `sealing`, an object of `size` bytes that was sealed for `context`, in `file`,
    piece by piece: no more than one is in memory."""

    def __init__(self, sealing: Sealing, context: bytes, file: BinaryIO, size: int) -> None:
        """Reads the head. Raises BrokenSeal, OSError."""
        head = file.read(_HEAD.size)
        pieces, rest = divmod(size - _HEAD.size, PIECE + _TAG)
        if len(head) < _HEAD.size or 0 < rest < _TAG or (not pieces and not rest):
            raise BrokenSeal("not sealed, or cut short")
        magic, version, key_id, salt = _HEAD.unpack(head)
        if magic != _MAGIC or version != VERSION:
            raise BrokenSeal(f"not sealed, or by another version than {VERSION}")
        if key_id != sealing.key_id:
            raise BrokenSeal("sealed with another key")
        self._pieces = pieces + bool(rest)
        self.size = size - _HEAD.size - _TAG * self._pieces
        """Bytes of plain text."""
        self._file, self._context, self._next = file, context, 0
        self._aead = sealing.aead_of(salt)
        self._left = memoryview(b"")
        self._told = 0

    def read(self, size: int) -> bytes:
        """The next `size` bytes, fewer at the end. Raises BrokenSeal, OSError."""
        parts = []
        while size > 0:
            if not self._left and not self._advance():
                break
            parts.append(self._left[:size])
            self._left = self._left[len(parts[-1]) :]
            size -= len(parts[-1])
            self._told += len(parts[-1])
        return b"".join(parts)

    def tell(self) -> int:
        """Bytes of plain text that were read."""
        return self._told

    def _advance(self) -> bool:
        from cryptography.exceptions import InvalidTag

        if self._next == self._pieces:
            return False
        last = self._next == self._pieces - 1
        sealed = self._file.read(PIECE + _TAG)
        try:
            plain = self._aead.decrypt(_NONCE.pack(self._next, last), sealed, self._context)
        except (InvalidTag, ValueError) as error:
            raise BrokenSeal("it was altered, or belongs elsewhere") from error
        self._left = memoryview(plain)
        self._next += 1
        return bool(plain)


def refuse_newer(sealed: bytes, path: Path | str) -> None:
    """Raise NewerFormat, naming `path`, for an object that a newer version sealed; of `sealed` the
    first five bytes tell."""
    magic, version = sealed[:4], sealed[4:5]
    if magic == _MAGIC and version > bytes([VERSION]):
        raise NewerFormat(path, version[0], VERSION)


def key_id_of(sealed: bytes) -> bytes | None:
    """Which key an object was sealed with; None for what is not sealed."""
    if len(sealed) < _HEAD.size or not sealed.startswith(_MAGIC):
        return None
    key_id: bytes = _HEAD.unpack_from(sealed)[2]
    return key_id


def _pieces(chunks: Iterable[Buffer]) -> Iterator[bytes]:
    """The same bytes in pieces of PIECE; the last may be shorter, never empty."""
    held = bytearray()
    for chunk in chunks:
        view = memoryview(chunk)
        while view:
            taken = view[: PIECE - len(held)]
            held += taken
            view = view[len(taken) :]
            if len(held) == PIECE:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)
