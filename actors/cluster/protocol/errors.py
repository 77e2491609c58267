"""What a cluster refuses or cannot do. Each passes between machines as a plain record.

ClusterError
├── Unreachable       nobody knows whether it was done
├── NotOwner          the agent is another node's, or nobody's just now
├── StaleEpoch        what was asked for belongs to an epoch that is over
├── LeaseLost         the node may not answer for its agents until its lease is renewed
├── Fenced            this incarnation of a node is over: join again
├── OtherDisk         a node has joined under this name with another disk
├── OtherModel        the cluster's nodes have a model with another tokenizer
├── LedgerGap         records between those that are here and those that came are missing
├── AgentBusy         its mailbox is full
├── AgentMoving       it will be elsewhere in a moment
├── AgentUnavailable  the nodes that have its ledger are all away
├── AgentUnsure       a node may have it that has not said yet what it has
├── UnknownAgent      nobody has spawned it
├── AgentExists       it was spawned with other options
├── UnknownNode       no node of that name has joined
├── NodeUnavailable   one has, and takes no agents just now
├── NoRoom            no node may take it
├── TurnLost          its answer was given, and its record died with its only node
├── ForkLost          so did the turns that it was to begin with
├── Unanswered        the deadline came first; the request may be taken yet, never twice
├── SaidOtherwise     a turn begun again says something else than was shown of it
├── NotAcrossNodes    what behaviours may do within one system alone
├── WrongRecord       a record of another version, or of a wrong shape
└── HostFailed        what the agent's system raised; `kind` is its name there
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from kvactors.core.errors import EngineDied, KvactorsError, SystemStopped

__all__ = [
    "AgentBusy",
    "AgentExists",
    "AgentMoving",
    "AgentUnavailable",
    "AgentUnsure",
    "ClusterError",
    "Fenced",
    "ForkLost",
    "HostFailed",
    "LeaseLost",
    "LedgerGap",
    "NoRoom",
    "NodeUnavailable",
    "NotAcrossNodes",
    "NotOwner",
    "OtherDisk",
    "OtherModel",
    "SaidOtherwise",
    "StaleEpoch",
    "TurnLost",
    "Unanswered",
    "UnknownAgent",
    "UnknownNode",
    "Unreachable",
    "WrongRecord",
    "for_another_time",
    "words_of",
]

logger = logging.getLogger(__name__)


@contextmanager
def for_another_time() -> Iterator[None]:
    """What a node does by itself and cannot do now is for another round: one agent whose ledger is
    damaged, or whose turns a full disk refuses, ends no node of others. Raises EngineDied, and
    SystemStopped: its host has ended, or nobody writes there any more."""
    try:
        yield
    except (EngineDied, SystemStopped):
        raise
    except (OtherDisk, OtherModel) as error:
        # Who began without the directory hears it only now.
        logger.error("%s", error)
    except ClusterError:
        pass
    except (KvactorsError, OSError) as error:
        logger.warning("%s", error)


MOST_WORDS = 1 << 16
"""Characters of an error's message that cross."""


class ClusterError(KvactorsError):
    """Root of them. `fields` are plain, and `rule` says with them what was broken."""

    rule: ClassVar[str] = "the cluster cannot do this"
    codes: ClassVar[dict[str, type["ClusterError"]]] = {}

    def __init_subclass__(cls) -> None:
        cls.codes[cls.__name__] = cls

    def __init__(self, **fields: Any) -> None:
        super().__init__(self.rule.format_map(_Shown(fields)))
        self.fields = fields

    @property
    def code(self) -> str:
        """Its name on the wire."""
        return type(self).__name__

    def to_record(self) -> dict[str, Any]:
        """What crosses."""
        return {"code": self.code, "fields": self.fields}

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "ClusterError":
        """The error again, of the root's own kind where the code is a newer version's."""
        return cls.codes.get(record["code"], ClusterError)(**record["fields"])

    @classmethod
    def of(cls, error: Exception) -> Self:
        """What crosses for an error that is none of these."""
        return cls(kind=type(error).__name__, message=words_of(error))


class Unreachable(ClusterError):
    """Nobody knows whether it was done."""

    rule = "{to} did not answer to {method}: it may have been done or not"


class NotOwner(ClusterError):
    """The agent is another node's, or nobody's just now."""

    rule = "{node} does not own {agent!r}"


class StaleEpoch(ClusterError):
    """What was asked for belongs to an epoch that is over."""

    rule = "epoch {epoch} of {agent!r} is over: {held} has begun"


class LeaseLost(ClusterError):
    """The node may not answer for its agents until its lease is renewed."""

    rule = "{node} holds no lease: it answers for no agent until the directory renews it"


class Fenced(ClusterError):
    """This incarnation of a node is over: join again."""

    rule = "incarnation {incarnation} of {node} is over, {held} is the last: join again"


class OtherDisk(ClusterError):
    """A node has joined under this name with another disk."""

    rule = (
        "a node called {node!r} has joined with another disk, and what that one kept is not on "
        "this one: give this node another name, and the replicas of the lost one take over"
    )


class OtherModel(ClusterError):
    """The cluster's nodes have a model with another tokenizer."""

    rule = (
        "the model of {node!r} has another tokenizer than that of {other!r}, and agents live on "
        "either: give all nodes of a cluster the same --model"
    )


class LedgerGap(ClusterError):
    """Records between those that are here and those that came are missing."""

    rule = "the ledger of {agent!r} has {have} records here"


class AgentBusy(ClusterError):
    """Its mailbox is full."""

    rule = "{agent!r} has as many messages as its mailbox holds: send again"


class AgentMoving(ClusterError):
    """It will be elsewhere in a moment."""

    rule = "{agent!r} is moving: ask again"


class AgentUnavailable(ClusterError):
    """The nodes that have its ledger are all away."""

    rule = "{agent!r} is stored on {nodes}, which are away: it answers when one of them is back"


class AgentUnsure(ClusterError):
    """A node may have it that has not said yet what it has."""

    rule = (
        "{nodes} may have {agent!r}, and did not say yet which agents there are: ask again, or "
        "drain those that are lost"
    )


class UnknownAgent(ClusterError):
    """Nobody has spawned it."""

    rule = "there is no agent {agent!r}: spawn it"


class AgentExists(ClusterError):
    """It was spawned with other options."""

    rule = "there is an agent {agent!r} with other options"


class UnknownNode(ClusterError):
    """No node of that name has joined."""

    rule = "no node {node!r} has joined"


class NodeUnavailable(ClusterError):
    """One has, and takes no agents just now."""

    rule = "node {node!r} takes no agents: it is away or drained"


class NoRoom(ClusterError):
    """No node may take it."""

    rule = "no node may take {agent!r}: {nodes} have joined, the others are away or drained"


class TurnLost(ClusterError):
    """Its answer was given, and its record died with its only node."""

    rule = "request {request!r} of {agent!r} was answered, and lost before it was durable"


class ForkLost(ClusterError):
    """So did the turns that it was to begin with."""

    rule = (
        "{agent!r} was to begin with turns of {of!r} that are there no more: forget {agent!r}, "
        "and fork again"
    )


class Unanswered(ClusterError):
    """The deadline came first; the request may be taken yet, never twice."""

    rule = "{agent!r} gave no answer in {seconds} s; the last reason: {reason}"


class SaidOtherwise(ClusterError):
    """A turn begun again says something else than was shown of it."""

    rule = (
        "another node took the turn over, and says something else than the {shown} {what} that "
        "were shown of it: read the transcript, or ask again with its request_id"
    )


class NotAcrossNodes(ClusterError):
    """What behaviours may do within one system alone."""

    rule = "{what} is of one system: {instead}"


class WrongRecord(ClusterError):
    """A record of another version, or of a wrong shape."""

    rule = "{reason}"


class HostFailed(ClusterError):
    """What the agent's system raised; `kind` is its name there."""

    rule = "{kind}: {message}"


class _Shown(dict[str, Any]):
    """Fields that an older version left out are shown as such."""

    def __missing__(self, name: str) -> str:
        return f"({name})"


def words_of(error: BaseException) -> str:
    """What an error says: somebody's own kind may fail at that, or find no end."""
    try:
        said = str(error)
    except Exception as failed:
        return f"(its message raised {type(failed).__name__})"
    return said if len(said) <= MOST_WORDS else f"{said[:MOST_WORDS]}…"
