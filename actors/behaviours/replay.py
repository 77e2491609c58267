"""Replay: behaviours run again on what a journal says they were told.

Each agent is replayed by itself: its messages in their order, and what it was answered. Without
a system its turns are those of the journal; with one they are taken again and compared.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from kvactors.actors import errors as of_storage
from kvactors.actors.agents.handle import Agent, agent_named
from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.actors.behaviours.context import Scheduled, check_ask, check_broadcast, with_choices
from kvactors.actors.behaviours.journal import pack, read_journal, unpack
from kvactors.actors.behaviours.runs import next_awaited
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.turns.checks import check_path, check_topic
from kvactors.core import errors as of_core
from kvactors.core.errors import InvalidInput, KvactorsError

__all__ = ["Replayed", "error_of", "replay"]


_KINDS: dict[str, type[KvactorsError]] = {
    kind.__name__: kind
    for kind in (*vars(of_core).values(), *vars(of_storage).values())
    if isinstance(kind, type) and issubclass(kind, KvactorsError)
}


class Spawns(Protocol):
    """A running system."""

    def spawn(self, agent_id: str) -> Agent:
        """The agent of this id."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay found: messages handled, turns taken, and in words what was different."""

    messages: int
    turns: int
    differences: tuple[str, ...]


def replay(
    path: str | Path,
    behaviours: Mapping[str, AgentBehaviour],
    *,
    types: Iterable[type] = (),
    system: Spawns | None = None,
) -> Replayed:
    """Run new `behaviours`, by agent id, on the journal at `path`. Agents without one are left out.

    `types` are the classes of the messages. What a behaviour sends is compared with the journal;
    with a running `system` its agents take the turns, and these are compared too. Timers, topics
    and other agents do nothing: what came of them is in the journal; `run_blocking` does what it
    does, for what came of it is not. One agent is replayed after the other, in the order of
    `behaviours`, each with its own messages in the order in which it began them; the order between
    agents is not repeated, and messages that a reentrant behaviour handled at once come one after
    the other. Raises InvalidInput, and whatever a behaviour raises:
    there it ends, also where the behaviour was made anew when it ran.
    """
    check_path("path", path)
    if not isinstance(behaviours, Mapping):
        raise InvalidInput(f"behaviours must be a mapping, not {type(behaviours).__name__}")
    kinds = tuple(types) if isinstance(types, Iterable) else (types,)
    if not all(isinstance(kind, type) for kind in kinds):
        raise InvalidInput(f"types must be classes, not {types!r:.80}")
    records = [record for record in read_journal(path) if record["agent"] in behaviours]
    differences: list[str] = []
    messages = turns = 0
    for agent_id, behaviour in behaviours.items():
        own = [record for record in records if record["agent"] == agent_id]
        context = _Recorded(agent_id, own, kinds, system, differences)
        behaviour.bind(context)  # type: ignore[arg-type]
        _run(behaviour.on_start)
        for record in own:
            if record["kind"] == "message":
                sender = record["sender"] and SimpleNamespace(agent_id=record["sender"])
                message = unpack(record["message"], kinds)
                _run(partial(behaviour.on_message, message, sender))
                messages += 1
        context.finish()
        turns += context.turns
    return Replayed(messages, turns, tuple(differences))


def _run(call: Callable[[], Any]) -> None:
    work = call()
    if inspect.iscoroutine(work):
        try:
            while True:
                future = next_awaited(work)
                with suppress(Exception):  # It is raised where the behaviour awaits it.
                    future.get()
        except StopIteration:
            pass


class _Recorded:
    """A behaviour's context whose answers are those of the journal."""

    def __init__(
        self,
        agent_id: str,
        records: list[dict[str, Any]],
        types: tuple[type, ...],
        system: Spawns | None,
        differences: list[str],
    ) -> None:
        spawned = None if system is None else system.spawn(agent_id)
        self.agent: Any = spawned or SimpleNamespace(agent_id=agent_id)
        self._live = spawned is not None
        self.reentrant = False
        self.turns = 0
        self._counts: Counter[str] = Counter()
        self._types = types
        self._differences = differences
        self._records = {(r.get("of", r["kind"]), r.get("number")): r for r in records}
        self._expected = sum(record["kind"] == "sent" for record in records)

    def think(self, prompt: Any, choices: Any, sampling: Any, timeout: Any, options: Any) -> Any:
        def ask() -> ReplyFuture[Any]:
            answers = with_choices(sampling, choices)
            reply = self.agent.ask(prompt, sampling=answers, timeout=timeout, **options).get()
            number = self._counts["turn"]
            self._compare(f"turn {number}", self._records["turn", number]["text"], reply.text)
            return _done(reply)

        return self._turn(ask)

    def observe(self, text: str, role: str) -> Any:
        return self._turn(lambda: self.agent.observe(text, role), may_lack=True)

    def _turn(self, ask: Callable[[], ReplyFuture[Any]], *, may_lack: bool = False) -> Any:
        future = self._again("turn", ask, may_lack=may_lack)
        self.turns += 1
        return future

    def rewind(self, turns: Any, to_token: Any) -> Any:
        return self._again(
            "rewind", lambda: self.agent.rewind(turns, to_token=to_token), may_lack=True
        )

    def _again(
        self, kind: str, ask: Callable[[], ReplyFuture[Any]] | None, *, may_lack: bool = False
    ) -> Any:
        """What the journal has of the next one of this `kind`, or what `ask` gives, if there is a
        system that can be asked. Older journals `may_lack` it. Raises what refused it."""
        number = self._next(kind)
        recorded = self._records.get((kind, number))
        if recorded is None and not may_lack:
            missing = f"the journal has no {kind} {number} of {self.agent.agent_id!r}"
            return _failed(InvalidInput(missing))
        if recorded is not None and recorded["kind"] == "failed":
            error = error_of(recorded["error"], recorded["text"])
            if recorded["at_once"]:
                raise error
            return _failed(error)
        return ask() if ask is not None and self._live else _done(self._value(recorded))

    def _value(self, recorded: dict[str, Any] | None) -> Any:
        if recorded is None:
            return None
        if recorded["kind"] == "answer":
            return unpack(recorded["value"], self._types)
        # Journals of before have the text alone.
        return SimpleNamespace(**{"answer": recorded.get("text"), **recorded})

    def _next(self, kind: str) -> int:
        self._counts[kind] += 1
        return self._counts[kind]

    def send(self, to: Any, message: Any) -> Any:
        return self._sending(agent_named(to), message)

    def _sending(self, name: str, message: Any) -> Any:
        number = self._next("sent")
        recorded = self._records.get(("sent", number), {"to": None, "message": None})
        was, now = (recorded["to"], recorded["message"]), (name, pack(message))
        self._compare(f"message {number}", was, now)
        return _done(None)

    def ask(self, to: Any, message: Any, timeout: Any) -> Any:
        self._sending(check_ask(self, to, timeout), message)
        return self._again("answer", None)

    def broadcast(self, message: Any, to: Any) -> Any:
        names = check_broadcast(to)
        return self._sending("*" if names is None else ",".join(names), message)

    def publish(self, topic: str, message: Any) -> Any:
        check_topic(topic)
        return self._sending(topic, message)

    def run_blocking(self, function: Callable[..., Any], *args: Any) -> Any:
        return _done(function(*args))

    def later(self, seconds: float, message: Any) -> Scheduled:
        return Scheduled(lambda _: None)

    every = later

    def nothing(self, *_: Any) -> Any:
        return _done(None)

    subscribe = unsubscribe = watch = stop = nothing

    def spawn(self, agent_id: str, *_: Any) -> Any:
        return _done(SimpleNamespace(agent_id=agent_id))

    def finish(self) -> None:
        if (sent := self._counts["sent"]) < self._expected:
            self._compare("messages sent", self._expected, sent)

    def _compare(self, what: str, was: Any, now: Any) -> None:
        if was != now:
            self._differences.append(f"{self.agent.agent_id}, {what}: {was!r} became {now!r}")


def _done(value: Any) -> ReplyFuture[Any]:
    future: ReplyFuture[Any] = ReplyFuture()
    future.resolve(value)
    return future


def _failed(error: KvactorsError) -> ReplyFuture[Any]:
    """What failed then fails again."""
    future: ReplyFuture[Any] = ReplyFuture()
    future.reject(error)
    return future


def error_of(name: str, text: str) -> KvactorsError:
    """An error as a journal has it, with the `name` of its class and its `text`: of that class, if
    it is one of kvactors."""
    kind = _KINDS.get(name)
    return kind(text) if kind else KvactorsError(f"{name}: {text}")
