"""What is said to agents and by them, sealed: between whoever asks and the agent's node, and in the
directory's journal. Agents' names, and how long and when, are not hidden. Pure: any thread."""

from collections.abc import Mapping
from typing import Any

from kvactors.actors.cluster.protocol.errors import HostFailed, WrongRecord, words_of
from kvactors.actors.cluster.protocol.interfaces import Record
from kvactors.core.errors import InvalidConfig
from kvactors.persistence.files.encryption import BrokenSeal, EncryptionKey, Sealing
from kvactors.persistence.files.naming import encode_agent_id
from kvactors.persistence.files.packing import pack, unpack
from kvactors.persistence.ledger.copies import make_copy, open_copy

__all__ = ["Seals", "key_name"]

VERSION = 1


class Seals:
    """Those of one `key`. What was sealed for one agent and one purpose opens for no other."""

    def __init__(self, key: EncryptionKey) -> None:
        """Raises EncryptionError."""
        self._sealing = Sealing(key)
        self.name = self._sealing.key_id.hex()
        """Tells the key from others without telling it."""

    def options(self, agent: str, options: Record) -> dict[str, Any]:
        """Of `spawn`: the same bytes for the same options, so that they can be compared."""
        context = _context("options", agent)
        return {"sealed": self._sealing.seal_same(context, pack(dict(options)))}

    def open_options(self, agent: str, options: Record) -> dict[str, Any]:
        """What `agent` was spawned with. Raises WrongRecord."""
        return self._opened("options", agent, options)

    def group(self, group: str) -> str:
        """A name for one that tells nothing of it."""
        return self._sealing.content_name(group)

    def request(self, agent: str, request: Record) -> dict[str, Any]:
        """To be asked of `agent`; its id stays readable."""
        return {"id": request["id"], **self._sealed("request", agent, request)}

    def open_request(self, agent: str, request: Record) -> dict[str, Any]:
        """What `agent` is asked. Raises WrongRecord, InvalidConfig for what was not sealed."""
        if "sealed" not in request:
            raise InvalidConfig("this cluster's nodes are encrypted: connect with their key")
        found = self._opened("request", agent, request)
        if found["id"] != request.get("id"):
            raise WrongRecord(reason="the id of a request is not that which was sealed with it")
        return found

    def answer(self, agent: str, answer: Record) -> dict[str, Any]:
        """What `agent` said."""
        return self._sealed("answer", agent, answer)

    def open_answer(self, agent: str, answer: Record) -> dict[str, Any]:
        """The same. Raises WrongRecord."""
        return self._opened("answer", agent, answer)

    def message(self, agent: str, body: bytes) -> bytes:
        """What `agent` is told by another one."""
        return bytes(self._sealed("message", agent, {"body": body})["sealed"])

    def open_message(self, agent: str, sealed: bytes) -> bytes:
        """The same. Raises WrongRecord."""
        return bytes(self._opened("message", agent, {"sealed": sealed})["body"])

    def told(self, agent: str, body: bytes) -> bytes:
        """What the behaviour of `agent` answers to that."""
        return bytes(self._sealed("told", agent, {"body": body})["sealed"])

    def open_told(self, agent: str, sealed: bytes) -> bytes:
        """The same. Raises WrongRecord."""
        return bytes(self._opened("told", agent, {"sealed": sealed})["body"])

    def item(self, agent: str, item: Record) -> bytes:
        """What `agent` says just now, as the `item` of a stream."""
        return bytes(self._sealed("tokens", agent, item)["sealed"])

    def open_item(self, agent: str, sealed: bytes) -> dict[str, Any]:
        """The same. Raises WrongRecord."""
        return self._opened("tokens", agent, {"sealed": sealed})

    def failure(self, agent: str, error: Exception) -> HostFailed:
        """What the system of `agent` raised: its message may repeat what was said."""
        message = self._sealed("failure", agent, {"message": words_of(error)})
        return HostFailed(kind=type(error).__name__, message="(sealed)", **message)

    def open_failure(self, agent: str, error: HostFailed) -> HostFailed:
        """The same with its message; one that was not sealed as it is. Raises WrongRecord."""
        if "sealed" not in error.fields:
            return error
        found = self._opened("failure", agent, error.fields)
        return HostFailed(kind=error.fields["kind"], message=found["message"])

    def open_copies(self, agent: str, start: int, copies: list[bytes]) -> list[bytes]:
        """`copies` of ledger records of `agent`, from the `start`-th on, as they are without a key.
        Raises WrongRecord."""
        try:
            found = [open_copy(self._sealing, agent, n, c) for n, c in enumerate(copies, start)]
        except ValueError as error:
            raise WrongRecord(reason=f"a record of {agent!r}: {error}") from error
        return [make_copy(None, agent, place, record) for place, record in enumerate(found, start)]

    def _sealed(self, purpose: str, agent: str, record: Record) -> dict[str, Any]:
        return {"sealed": self._sealing.seal_bytes(_context(purpose, agent), pack(dict(record)))}

    def _opened(self, purpose: str, agent: str, record: Mapping[str, Any]) -> dict[str, Any]:
        try:
            plain = self._sealing.open_bytes(_context(purpose, agent), record["sealed"])
            return dict(unpack(plain))
        except (BrokenSeal, KeyError, TypeError, ValueError) as error:
            raise WrongRecord(reason=f"the {purpose} of {agent!r}: {error}") from error


def key_name(key: EncryptionKey | None) -> str:
    """What the key of a cluster is called in its settings; "" for none. Raises EncryptionError."""
    return "" if key is None else Seals(key).name


def _context(purpose: str, agent: str) -> bytes:
    return f"cluster {purpose} {VERSION} {encode_agent_id(agent)}".encode()
