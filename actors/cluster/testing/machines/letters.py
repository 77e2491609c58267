"""What must hold of messages, judged from what senders were told and which mailboxes they came to.
It knows who owns an agent from the directory alone, and leases from when that has renewed them. One
thread, one loop.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["LetterOracle", "Life", "Sent"]

OPEN = ("Undelivered in flight", "Unanswered")
"""Ends that leave open whether it was taken."""
CERTAIN = ("Undelivered", "MailboxFull", "TurnTimeout", "UnknownAgent", "ForkLost", "OSError")
"""Ends of what nobody has taken."""


@dataclass(slots=True, eq=False)
class Life:
    """Of a behaviour on a `node`, or of somebody outside, whose `agent` is None."""

    name: str
    agent: str | None
    node: str
    began: float
    ended: bool = False
    died: Callable[[], bool] = lambda: False
    superseded: str = ""
    """By which life elsewhere that began before this one had ended."""
    sent: Counter[str] = field(default_factory=Counter)
    """How many, by receiver."""


@dataclass(slots=True, eq=False)
class Sent:
    """A message: the `order`-th of a `life` to its receiver."""

    key: int
    life: Life
    to: str
    order: int
    asks: bool
    posted: float
    taken: Life | None = None
    told: str | None = None


class LetterOracle:
    """`broken` lists what did not hold. `now` is the time; `owner` says where an agent lives, and
    a lease is `lease` seconds."""

    def __init__(
        self,
        broken: list[str],
        now: Callable[[], float],
        owner: Callable[[str], str],
        lease: float,
    ) -> None:
        self._broken, self._now, self._owner, self._lease = broken, now, owner, lease
        self._renewed: dict[str, float] = {}
        self._sent: list[Sent] = []
        self._lives: dict[str, list[Life]] = {}
        self._last: dict[tuple[str, str], int] = {}
        self.counts: Counter[str] = Counter()
        """What happened: a world in which nothing does proves nothing."""

    def renewed(self, node: str) -> None:
        """The directory has renewed its lease."""
        self._renewed[node] = self._now()

    def begins(self, agent: str | None, node: str, died: Callable[[], bool]) -> Life:
        """A life of `agent`, or of somebody else, on `node`; `died`: whether its process has."""
        lives = self._lives.setdefault(agent or node, [])
        life = Life(f"{agent or 'somebody'}@{node}#{len(lives)}", agent, node, self._now())
        life.died = died
        for other in lives if agent else ():
            if not other.ended and not other.superseded:
                # One that was so long in beginning that its node has lost the agent is the earlier.
                late = self._owner(str(agent)) == other.node != node
                early, later = (life, other) if late else (other, life)
                early.superseded = later.name
        lives.append(life)
        return life

    def over(self, life: Life, in_hand: int) -> None:
        """A `life` ends with so many messages in hand, or sent ones that wait."""
        life.ended = True
        at_home = self._owner(str(life.agent)) == life.node and self._leased(life.node)
        if in_hand and at_home and not life.superseded:
            self._broken.append(f"{life.name} was ended at home with {in_hand} messages in hand")

    def lives(self, agent: str) -> list[Life]:
        """All that its behaviour has had, in the order in which they began."""
        return list(self._lives.get(agent, ()))

    def sends(self, life: Life, to: str, *, asks: bool) -> Sent:
        """The next message of a `life` `to` an agent, which `asks` for an answer or not."""
        sent = Sent(len(self._sent), life, to, life.sent[to], asks, self._now())
        life.sent[to] += 1
        self._sent.append(sent)
        return sent

    def leaves(self, key: int, node: str) -> None:
        """The message of this `key` is about to leave `node`."""
        life = self._sent[key].life
        if life.agent is None:
            return
        if life.superseded:
            self._say(key, f"left {node} after {life.superseded} had begun")
        if not self._leased(node):
            self._say(key, f"left {node}, which has no lease")

    def answers(self, key: int, node: str) -> None:
        """The answer to the message of this `key` is about to leave `node`."""
        if (life := self._sent[key].taken) is None:
            self._say(key, "is answered, and nobody has taken it")
            return
        if life.superseded:
            self._say(key, f"is answered by {life.name} after {life.superseded} had begun")
        if not self._leased(node):
            self._say(key, f"is answered by {node}, which has no lease")

    def taken(self, key: int, life: Life) -> None:
        """It came into the mailbox of a `life`."""
        sent, agent = self._sent[key], life.agent
        if sent.taken is not None:
            self._say(key, f"was taken by {sent.taken.name} and by {life.name}")
        if sent.told in CERTAIN:
            self._say(key, f"was taken by {life.name}, and its sender was told {sent.told}")
        if agent != sent.to or self._owner(sent.to) != life.node:
            self._say(key, f"was taken by {life.name}, at home on {self._owner(sent.to)}")
        if not self._leased(life.node):
            self._say(key, f"was taken by {life.name}, whose node has no lease")
        between = (sent.life.name, sent.to)
        if sent.order <= self._last.get(between, -1):
            self._say(key, f"was taken by {life.name} behind the {self._last[between]}-th")
        self._last[between] = max(sent.order, self._last.get(between, -1))
        sent.taken = life
        self._count_taken(sent, life)

    def _count_taken(self, sent: Sent, life: Life) -> None:
        self.counts["taken"] += 1
        before = [other for other in self._lives[sent.to] if other.began <= sent.posted]
        if before and before[-1] is not life and before[-1].node != life.node:
            self.counts["taken over" if before[-1].superseded else "followed"] += 1

    def told(self, key: int, kind: str, answered: Any = None) -> None:
        """The sender of `key` was told how it ended: "taken", "answered" to the message `answered`,
        "ended" by a life, or an error of some `kind`."""
        sent = self._sent[key]
        if sent.told is not None:
            self._say(key, f"ended twice: {sent.told}, then {kind}")
        sent.told = kind
        self.counts[kind] += 1
        if kind in ("taken", "answered", "ended"):
            if sent.taken is None:
                self._say(key, f"{kind}, and nobody has taken it")
            if answered not in (None, key):
                self._say(key, f"was given the answer to {answered}")
        elif kind in CERTAIN:
            if sent.taken is not None:
                self._say(key, f"was taken by {sent.taken.name}, and its sender told {kind}")
        elif kind not in OPEN:
            self._say(key, f"ended with {kind}, which is no end of a message")

    def waiting(self) -> list[Sent]:
        """Those that have not ended, and whose senders live."""
        return [sent for sent in self._sent if sent.told is None and not sent.life.died()]

    def ends(self) -> None:
        """The story is over."""
        for sent in self.waiting():
            self._say(sent.key, "never ended")

    def _leased(self, node: str) -> bool:
        """Whether it may have a lease."""
        return self._now() - self._renewed.get(node, -1e9) <= self._lease

    def _say(self, key: int, what: str) -> None:
        sent = self._sent[key]
        name = f"message {key}, the {sent.order}-th of {sent.life.name} to {sent.to},"
        self._broken.append(f"{name} {what}")
