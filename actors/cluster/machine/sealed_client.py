"""Whoever asks agents of encrypted nodes: with their key."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from kvactors.actors.cluster.machine.seals import Seals
from kvactors.actors.cluster.protocol.client import Client
from kvactors.actors.cluster.protocol.errors import HostFailed, WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Clock, Record, Transport
from kvactors.actors.cluster.protocol.records import Place, Settings
from kvactors.core.errors import InvalidConfig
from kvactors.persistence.files.encryption import EncryptionKey

__all__ = ["open_client", "open_words"]

NO_KEY = (
    "the nodes of this cluster are encrypted: what is said to agents and by them needs their key: "
    "Cluster.connect(encryption_key=...)"
)
NEEDLESS_KEY = (
    "an encryption_key was given, and the nodes of this cluster have none: what is said there is "
    "stored as it is. Start them with $KVACTORS_KEY_FILE, or connect without a key"
)
OTHER_KEY = "the nodes of this cluster have another encryption_key: take the one of the head"


def open_client(
    transport: Transport, clock: Clock, settings: Settings, key: EncryptionKey | None
) -> Client:
    """A client over `transport`, by `clock`, of a cluster whose `settings` say which `key` it has.
    Without the key of an encrypted one it sees nodes and places. Raises InvalidConfig."""
    seals = None if key is None else Seals(key)
    if not settings.key and seals is None:
        return Client(transport, clock, settings)
    if seals is not None and seals.name != settings.key:
        raise InvalidConfig(OTHER_KEY if settings.key else NEEDLESS_KEY)
    return _SealedClient(transport, clock, settings, seals)


def open_words(settings: Settings, key: EncryptionKey | None) -> Callable[[], Seals | None]:
    """The seals of what agents of a cluster with these `settings` tell each other, if it has any.
    Raises InvalidConfig without the `key` of an encrypted one."""
    seals = None if key is None else Seals(key)

    def words() -> Seals | None:
        if settings.key and seals is None:
            raise InvalidConfig(NO_KEY)
        return seals

    return words


class _SealedClient(Client):
    """A Client that seals what it says by `seals`, and opens what it is told; it refuses to say
    anything without them."""

    def __init__(
        self, transport: Transport, clock: Clock, settings: Settings, seals: Seals | None
    ) -> None:
        super().__init__(transport, clock, settings)
        self._given = seals

    @property
    def _seals(self) -> Seals:
        if self._given is None:
            raise InvalidConfig(NO_KEY)
        return self._given

    async def spawn(self, agent: str, options: Record, group: str | None, seconds: float) -> Place:
        """See Client."""
        sealed, named = self._seals.options(agent, options), group and self._seals.group(group)
        return await super().spawn(agent, sealed, named, seconds)

    async def turn(self, agent: str, request: Record, seconds: float) -> dict[str, Any]:
        """See Client."""
        seals = self._seals
        try:
            given = await super().turn(agent, seals.request(agent, request), seconds)
        except HostFailed as error:
            raise seals.open_failure(agent, error) from error
        return {**given, "answer": seals.open_answer(agent, given["answer"])}

    async def serve(self, agent: str, seconds: float) -> None:
        """See Client."""
        try:
            await super().serve(agent, seconds)
        except HostFailed as error:
            raise self._seals.open_failure(agent, error) from error

    async def cancel(self, agent: str, request: str, seconds: float) -> dict[str, Any]:
        """See Client; its answer is opened here."""
        seals = self._seals
        try:
            given = await super().cancel(agent, request, seconds)
        except HostFailed as error:
            raise seals.open_failure(agent, error) from error
        return {**given, "answer": seals.open_answer(agent, given["answer"])}

    async def fork(self, agent: str, child: str, request: str, seconds: float) -> bool:
        """See Client. Either of both may have failed."""
        try:
            return await super().fork(agent, child, request, seconds)
        except HostFailed as error:
            with suppress(WrongRecord):
                raise self._seals.open_failure(agent, error) from error
            raise self._seals.open_failure(child, error) from error

    async def stream(
        self, agent: str, request: Record, seconds: float
    ) -> AsyncIterator[dict[str, Any]]:
        """See Client."""
        seals = self._seals
        try:
            async for item in super().stream(agent, seals.request(agent, request), seconds):
                yield _opened(seals, agent, item)
        except HostFailed as error:
            raise seals.open_failure(agent, error) from error

    async def read(self, agent: str, start: int, seconds: float) -> dict[str, Any]:
        """See Client; the records are opened here."""
        seals = self._seals
        found = await super().read(agent, start, seconds)
        return {**found, "records": seals.open_copies(agent, start, found["records"])}


def _opened(seals: Seals, agent: str, item: dict[str, Any]) -> dict[str, Any]:
    if "answer" in item:
        return {**item, "answer": seals.open_answer(agent, item["answer"])}
    return seals.open_item(agent, item["sealed"]) if "sealed" in item else item
