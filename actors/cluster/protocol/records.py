"""What the directory knows, as frozen records that pass between machines as plain ones."""

from dataclasses import Field, dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Self

from kvactors.actors.cluster.protocol.errors import WrongRecord
from kvactors.actors.cluster.protocol.interfaces import Record

__all__ = ["ADOPTED", "FORK", "Member", "Move", "Place", "Plain", "Settings"]

ADOPTED = "adopted"
"""In the options of a place: that nobody has said yet what a stored agent is spawned with."""
FORK = "fork"
"""In the options of a place: where an agent begins that has another one's memory."""


class Plain:
    """A dataclass that is a plain record on the wire. Strict: what it does not know is refused."""

    LATER: ClassVar[Record] = {}
    """Fields that records of an older kvactors lack, as they are then."""
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def to_record(self) -> dict[str, Any]:
        """Its fields by name, as they are: nobody changes what a frozen one has."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """Again. Raises WrongRecord."""
        record = {**cls.LATER, **record}
        if record.keys() != (names := cls.__dataclass_fields__).keys():
            odd = sorted(record.keys() ^ names.keys())
            raise WrongRecord(
                reason=f"{cls.__name__} with unknown or missing fields: {odd}: if a newer kvactors "
                "made it, upgrade this one"
            )
        return cls(**record)


@dataclass(frozen=True, slots=True)
class Place(Plain):
    """Where an agent lives. Any change of it is a new epoch."""

    agent: str
    node: str
    """Who owns it ..."""
    incarnation: int
    """... while this incarnation of the node lasts; 0: any that claims it."""
    epoch: int
    replica: str | None
    """Who has all records that were called durable."""
    group: str | None
    """Agents that share a beginning, and so memory, where they are together."""
    born: int
    """The epoch it was spawned in."""
    options: dict[str, Any] = field(default_factory=dict)
    """What `spawn` was given, for the host."""

    @property
    def fresh(self) -> bool:
        """Whether nobody has ever claimed it: nothing of it is stored anywhere."""
        return (self.incarnation, self.epoch, self.replica) == (0, self.born, None)


@dataclass(frozen=True, slots=True)
class Member(Plain):
    """A node that joined once."""

    LATER = MappingProxyType({"leaving": False})

    node: str
    incarnation: int
    disk: str
    """The name of its journal: another one does not have what this one kept."""
    fenced: bool = False
    """This incarnation is over."""
    draining: bool = False
    """It gives away what it has, and gets no more ..."""
    leaving: bool = False
    """... until its next incarnation comes: it was told to end, and nobody drained it."""


@dataclass(frozen=True, slots=True)
class Move(Plain):
    """That an agent shall live on `target`: kept until it does, or cannot."""

    agent: str
    target: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Of a cluster; the same on all of its nodes."""

    lease: float = 3.0
    """Seconds for which a node may answer without hearing of the directory."""
    skew: float = 0.01
    """By which part a clock may go too fast or too slow."""
    call: float = 1.0
    """Seconds after which an answer of another node is waited for no more, a turn's apart."""
    look: float = 1.0
    """Seconds after which a wait without a limit is looked at, whether it is one of a circle."""
    bring: float = 60.0
    """Seconds after which an agent's memory has been on its way to another node for too long; what
    has arrived stays there, for the next try."""
    durable: str = "two"
    """On how many nodes a turn is synced before it is called durable: "one" or "two"."""
    served: int = 10_000
    """Agents of a node that are in memory at once."""
    moves: int = 4
    """Moves under way at once."""
    model: str = "default"
    """What all nodes run."""
    key: str = ""
    """Which key all nodes have, by a name that does not tell it; "": they are not encrypted."""
