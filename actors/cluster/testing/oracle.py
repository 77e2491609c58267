"""What must hold, judged from what clients were told and what disks hold; it knows no epoch's use,
no lease and no replica's duties."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Asked", "Oracle"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What had been acknowledged to anyone when something was asked."""

    agent: str
    text: str
    epoch: int
    durable: int
    """Turns 0 to here, exclusive."""


@dataclass(slots=True)
class _Seen:
    epoch: int = 0
    """The highest that acknowledged."""
    owners: dict[int, str] = field(default_factory=dict)
    durable: dict[int, str] = field(default_factory=dict)
    remembers: dict[int, list[str]] = field(default_factory=dict)
    """What was shown to be remembered behind a turn."""
    answered: dict[str, None] = field(default_factory=dict)


class Oracle:
    """`broken` lists what did not hold."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self._agents: dict[str, _Seen] = {}
        # How many turns are taken back by this; and by which text another one was withdrawn.
        self._rewinds: dict[str, int] = {}
        self._withdrawn: dict[str, str] = {}
        self.answers = 0

    def asks(
        self, agent: str, text: str = "", *, rewinds: int | None = None, withdrawn: str = ""
    ) -> Asked:
        """A client is about to: for a turn of this `text`, or that so many are taken back
        (`rewinds`). `withdrawn` is what may stand in its place in the ledger of `agent`."""
        if rewinds is not None:
            self._rewinds[text] = rewinds
        if withdrawn:
            self._rewinds[withdrawn], self._withdrawn[withdrawn] = 0, text
        seen = self._agents.setdefault(agent, _Seen())
        return Asked(agent, text, seen.epoch, 1 + max(seen.durable, default=-1))

    def answered(self, asked: Asked, epoch: int, node: str, index: int, text: str) -> None:
        """A client that `asked` was given an answer by `node` in `epoch`: that of `text`, which is
        the turn `index`."""
        self.answers += 1
        self._acknowledged(asked, epoch, node)
        if asked.text not in (text, self._withdrawn.get(text)):
            self._say(asked.agent, f"{asked.text} got the answer of {text}")
        if index < asked.durable:
            self._say(asked.agent, f"{text} was taken as turn {index}, in front of older ones")
        self._agents[asked.agent].answered[text] = None

    def durable(self, asked: Asked, index: int, text: str, remembers: list[str]) -> None:
        """A client that `asked` was told that the turn `index` is durable: that of `text`, behind
        which its agent `remembers` this."""
        seen = self._agents[asked.agent]
        if seen.durable.setdefault(index, text) != text:
            self._say(asked.agent, f"{seen.durable[index]} and {text} are both turn {index}")
        seen.remembers[index] = remembers

    def forked(self, asked: Asked, child: str, ledger: list[str], *, durable: bool) -> None:
        """A client that `asked` for it was told that there is a fork, `child`, and shown its
        `ledger`, all of which is `durable` or may not be yet."""
        parent, seen = self._agents[asked.agent], self._agents.setdefault(child, _Seen())
        for index in range(asked.durable):
            known = parent.durable.get(index)
            if index >= len(ledger) or known not in (None, ledger[index]):
                self._say(child, f"begins without turn {index} of {asked.agent}")
        if durable:
            seen.durable.update(enumerate(ledger))

    def read(self, asked: Asked, epoch: int, node: str, ledger: list[str]) -> None:
        """A client that `asked` was shown the whole `ledger` by `node` in `epoch`."""
        self._acknowledged(asked, epoch, node)
        if len(ledger) < asked.durable:
            self._say(asked.agent, f"{node} shows {len(ledger)} of {asked.durable} durable turns")

    def restored(self, agent: str, ledger: list[str], said: list[str]) -> None:
        """The store that has most of `agent` was restored with this `ledger`, which must stay; all
        that was `said` in any of them is kept somewhere."""
        seen = self._agents.setdefault(agent, _Seen())
        for index, text in enumerate(ledger):
            if seen.durable.setdefault(index, text) != text:
                self._say(agent, f"{seen.durable[index]} stands where {text} was restored")
        seen.answered |= dict.fromkeys(said)

    def unanswered(self, agent: str, text: str, reason: str) -> None:
        """The faults are over, and `agent` has not answered `text`; the `reason` is the last."""
        self._say(agent, f"{text} was never answered: {reason}")

    def never_began(self, agent: str, reason: str) -> None:
        """A fork, `agent`, is said to be lost, for this `reason`: one that was durable is not."""
        if self._agents[agent].durable:
            self._say(agent, f"durable turns are lost on its way: {reason}")

    def ends(
        self, agent: str, ledgers: Mapping[str, list[str]], aside: list[str], home: set[str]
    ) -> None:
        """All is quiet: `ledgers` of `agent` by node, of which only those of `home` may have any;
        `aside` is what was set aside."""
        seen = self._agents.setdefault(agent, _Seen())
        for node in sorted(home):
            ledger = ledgers.get(node, [])
            for index, text in sorted(seen.durable.items()):
                if ledger[index : index + 1] != [text]:
                    self._say(agent, f"durable turn {index}, {text}, is lost on {node}")
            for index, remembers in sorted(seen.remembers.items()):
                if self._remembered(ledger[: index + 1]) != remembers:
                    self._say(agent, f"{remembers} was remembered behind turn {index} of {node}")
            for text in ledger:
                if self._withdrawn.get(text) in ledger:
                    self._say(agent, f"{self._withdrawn[text]} was withdrawn and taken on {node}")
            twice = [text for text, count in Counter(ledger).items() if count > 1]
            if twice:
                self._say(agent, f"{', '.join(twice)} taken twice on {node}")
        stored = {text for ledger in ledgers.values() for text in ledger} | set(aside)
        for text in seen.answered:
            if text not in stored:
                self._say(agent, f"{text}, which was answered, is stored nowhere")
        orphans = sorted(node for node, ledger in ledgers.items() if node not in home)
        if orphans:
            self._say(agent, f"orphans on {', '.join(orphans)}, at home on {sorted(home)}")

    def moved(self, agent: str, target: str, since: Sequence[Mapping[str, Any]]) -> None:
        """A move of `agent` to `target` was promised; the directory has written all of `since`
        then."""
        there = any(
            place["agent"] == agent and place["node"] == target
            for record in since
            for place in record.get("places", ())
        )
        # It lived there when it was asked for: it stays.
        there = there or any(
            [agent, target] in record.get("stays", ()) and "moves" not in record for record in since
        )
        if not there and not any(agent in record.get("moved", ()) for record in since):
            self._say(agent, f"its move to {target} was neither made nor given up")

    def _remembered(self, ledger: list[str]) -> list[str]:
        found: list[str] = []
        for text in ledger:
            if text in self._rewinds:
                found = found[: max(0, len(found) - self._rewinds[text])]
            else:
                found.append(text)
        return found

    def _acknowledged(self, asked: Asked, epoch: int, node: str) -> None:
        seen = self._agents[asked.agent]
        if seen.owners.setdefault(epoch, node) != node:
            self._say(asked.agent, f"{node} and {seen.owners[epoch]} both own epoch {epoch}")
        if epoch < asked.epoch:
            self._say(asked.agent, f"{node} answers in epoch {epoch} after {asked.epoch}")
        seen.epoch = max(seen.epoch, epoch)

    def _say(self, agent: str, what: str) -> None:
        self.broken.append(f"{agent}: {what}")
