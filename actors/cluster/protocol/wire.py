"""What crosses between machines: msgpack of plain records, with a version. Never a pickle."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgpack  # type: ignore[import-untyped]

from kvactors.actors.cluster.protocol.errors import ClusterError, HostFailed, WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Record

__all__ = ["VERSION", "answered", "pack", "serve", "serve_stream", "unpack"]

VERSION = 1


def pack(record: Record) -> bytes:
    """A record as it crosses."""
    whole = {"version": VERSION, "record": record}
    return bytes(msgpack.packb(whole, unicode_errors="surrogatepass"))


def unpack(data: bytes) -> dict[str, Any]:
    """The record again. Raises WrongRecord where a newer or older kvactors packed it."""
    try:
        whole = msgpack.unpackb(data, unicode_errors="surrogatepass")
        version = whole["version"]
        if version == VERSION:
            return dict(whole["record"])
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise WrongRecord(reason=f"not a record of a cluster: {error}") from error
    raise WrongRecord(
        reason=f"record version {version}, this node speaks {VERSION}: run one release on all"
    )


async def serve(
    handle: Callable[[str, Record], Awaitable[Record]], method: str, data: bytes
) -> bytes:
    """What to send back for a call of `method` with `data`: an answer or an error, packed.
    `handle` is a Node's or a Directory's."""
    try:
        return pack({"answer": await handle(method, unpack(data))})
    except Exception as error:
        return _failed(error)


async def serve_stream(
    stream: Callable[[str, Record], AsyncIterator[Record]], method: str, data: bytes
) -> AsyncIterator[bytes]:
    """The same for a `stream` by `method` with `data`: items packed one by one, an error as the
    last of them."""
    try:
        async for item in stream(method, unpack(data)):
            yield pack({"answer": item})
    except Exception as error:
        yield _failed(error)


def answered(data: bytes) -> dict[str, Any]:
    """The answer in what came back, or raises the error."""
    record = unpack(data)
    if "error" in record:
        raise ClusterError.from_record(record["error"])
    return dict(record["answer"])


def _failed(error: Exception) -> bytes:
    known = error if isinstance(error, ClusterError) else HostFailed.of(error)
    return pack({"error": known.to_record()})
