"""Context: what a behaviour's methods do in a running system. Called on its actor's thread."""

import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from kvactors.actors.agents.handle import Agent, agent_named
from kvactors.actors.behaviours.forgetting import left_by
from kvactors.actors.behaviours.router import MessageRouter
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.timer import Deadline
from kvactors.actors.turns.checks import check_callable, check_known, check_topic, check_turn
from kvactors.actors.turns.options import AskOptions
from kvactors.actors.turns.reply import Reply, Rewound
from kvactors.core.errors import InvalidInput, SystemStopped
from kvactors.core.numbers import number
from kvactors.core.schedule.sampling import Sampling

__all__ = ["Context", "Scheduled", "Services", "check_ask", "check_broadcast", "with_choices"]

T = TypeVar("T")


class Scheduled:
    """A message that will be sent, once or again and again. Any thread may cancel it."""

    def __init__(self, ended: Callable[["Scheduled"], object]) -> None:
        self._ended = ended
        self._lock = threading.Lock()
        self._deadline: Deadline | None = None
        self.active = True

    def cancel(self) -> None:
        """Send it no more."""
        self.end()

    def wait_for(self, deadline: Deadline) -> None:
        """It is sent then, unless it ends before: nothing is kept for a deadline that is not."""
        self._deadline = deadline
        if not self.active:
            deadline.cancel()

    def end(self) -> bool:
        """Whether this call ended it; it can end once."""
        with self._lock:
            active, self.active = self.active, False
        if active:
            if self._deadline is not None:
                self._deadline.cancel()
            self._ended(self)
        return active


class Services(Protocol):
    """What a behaviour needs besides messages."""

    def after(self, seconds: float, callback: Callable[[], object]) -> Deadline:
        """Call back, on the timer's thread."""

    def run_blocking(self, name: str, function: Callable[[], Any]) -> ReplyFuture[Any]:
        """Call something that may block for the agent `name`, on a thread of its own kind."""

    def spawn(self, agent_id: str, system_prompt: str | None, **options: Any) -> Agent:
        """A new agent of the system; may block."""

    def stop(self, agent_id: str) -> None:
        """End a behaviour after the message that it handles."""


class Context:
    """One `agent`'s side of the messages, which `router` delivers; `services` are what it needs
    besides. `reentrant` is what the behaviour says of itself; `left` takes a future of what each
    turn leaves in the agent's memory, where a restart is to forget that."""

    def __init__(self, agent: Agent, router: MessageRouter, services: Services) -> None:
        self.agent = agent
        self.reentrant = False
        self.left: list[ReplyFuture[Any]] | None = None
        self.router = router
        self._services = services
        # Whether each is for good.
        self._scheduled: dict[Scheduled, bool] = {}
        self._closed = False

    def think(
        self,
        prompt: Any,
        choices: tuple[str, ...],
        sampling: Sampling | None,
        timeout: float | None,
        options: dict[str, Any],
    ) -> ReplyFuture[Reply]:
        """A turn: `prompt`, `choices`, `sampling`, `timeout` and the other `options` of
        `Agent.ask`. Raises what that raises."""

        def ask() -> ReplyFuture[Reply]:
            check_known("think", options, AskOptions.__annotations__)
            answers = with_choices(sampling, choices)
            return self.agent.ask(prompt, sampling=answers, timeout=timeout, **options)

        return self._turn(ask)

    def observe(self, text: str, role: str) -> ReplyFuture[Reply]:
        """A turn without an answer."""
        return self._turn(lambda: self.agent.observe(text, role))

    def rewind(self, turns: int | None, to_token: int | None) -> ReplyFuture[Rewound]:
        """Forget."""
        return self._noted("rewind", lambda: self.agent.rewind(turns, to_token=to_token))

    def send(self, to: str | Agent, message: Any) -> ReplyFuture[None]:
        """A message to one agent."""
        name = agent_named(to)
        self._sending(name, message)
        return self.router.post(name, message, self.agent)

    def ask(self, to: str | Agent, message: Any, timeout: float | None) -> ReplyFuture[Any]:
        """A `message` `to` an agent, its answer within `timeout` seconds. Raises InvalidInput."""
        name = check_ask(self, to, timeout)
        self._sending(name, message)
        return self._noted("answer", lambda: self.router.ask(name, message, self.agent, timeout))

    def broadcast(self, message: Any, to: Iterable[str | Agent] | None) -> ReplyFuture[None]:
        """A message to several. Raises InvalidInput for one agent: its name has letters."""
        named = check_broadcast(to)
        self._sending("*" if named is None else ",".join(named), message)
        if named is None:
            named = sorted(self.router.receivers().keys() - {self.agent.agent_id})
        return self.router.post_all(named, message, self.agent)

    def subscribe(self, topic: str) -> None:
        """Follow a topic."""
        check_topic(topic)
        _check_open(self.agent, closed=self._closed)
        self.router.subscribe(topic, self.agent.agent_id)

    def unsubscribe(self, topic: str) -> None:
        """Follow it no more."""
        check_topic(topic)
        _check_open(self.agent, closed=self._closed)
        self.router.unsubscribe(topic, self.agent.agent_id)

    def publish(self, topic: str, message: Any) -> ReplyFuture[None]:
        """A message to a topic."""
        check_topic(topic)
        self._sending(topic, message)
        return self.router.publish(topic, message, self.agent)

    def watch(self, agent: str | Agent) -> None:
        """A message when a behaviour ends."""
        _check_open(self.agent, closed=self._closed)
        self.router.on_end(agent_named(agent), self.agent.agent_id)

    def spawn(self, agent_id: str, system_prompt: str | None, options: dict[str, Any]) -> Any:
        """A child, `agent_id`, with its `system_prompt` and `options`."""
        parent = self.agent.agent_id
        if options.setdefault("parent", parent) != parent:
            raise InvalidInput(f"whom {parent!r} spawns is its child: leave out parent")

        def begin() -> Agent:
            child = self._services.spawn(agent_id, system_prompt, **options)
            if self._closed and options.get("behaviour") is not None:
                # Meanwhile: with a behaviour those of its children end.
                self._services.stop(agent_id)
                raise SystemStopped(f"the behaviour of {parent!r}, whose child it is, has ended")
            return child

        return self.run_blocking(begin)

    def stop(self, agent: str | Agent | None) -> None:
        """The end of a behaviour."""
        name = self.agent.agent_id if agent is None else agent_named(agent)
        if name == self.agent.agent_id:
            _check_open(self.agent, closed=self._closed)
        self._services.stop(name)

    def later(self, seconds: float, message: Any) -> Scheduled:
        """One message to oneself."""
        _check_seconds(seconds, 0)
        _check_open(self.agent, closed=self._closed)
        outstanding = self.router.outstanding
        outstanding.begin_work()

        def ended(one: Scheduled) -> None:
            self._scheduled.pop(one, None)
            outstanding.end_work()

        def fire() -> None:
            if scheduled.active:
                self.router.post(self.agent.agent_id, message, self.agent)
                scheduled.end()

        scheduled = Scheduled(ended)
        self._scheduled[scheduled] = False
        scheduled.wait_for(self._services.after(seconds, fire))
        return scheduled

    def every(self, seconds: float, message: Any) -> Scheduled:
        """Messages to oneself."""
        _check_seconds(seconds, 1e-3)
        _check_open(self.agent, closed=self._closed)

        def fire() -> None:
            if scheduled.active:
                self.router.post(self.agent.agent_id, message, self.agent)
                scheduled.wait_for(self._services.after(seconds, fire))

        scheduled = Scheduled(lambda one: self._scheduled.pop(one, None))
        self._scheduled[scheduled] = True
        scheduled.wait_for(self._services.after(seconds, fire))
        return scheduled

    def close(self, *, restart: bool = False) -> None:
        """Nothing is sent to it any more: its behaviour has ended. On a `restart` nothing that
        would come again and again: the behaviour says so anew."""
        self._closed = self._closed or not restart
        for scheduled, for_good in list(self._scheduled.items()):
            if for_good or not restart:
                scheduled.cancel()

    def run_blocking(self, function: Callable[..., Any], *args: Any) -> ReplyFuture[Any]:
        """Something on another thread."""
        check_callable("function", function)
        return self._services.run_blocking(self.agent.agent_id, lambda: function(*args))

    def _turn(self, ask: Callable[[], ReplyFuture[Reply]]) -> ReplyFuture[Reply]:
        """What `ask` gives."""
        future = self._noted("turn", ask)
        if self.left is not None:
            self.left.append(left_by(self.agent, future))
        return future

    def _sending(self, to: str, message: Any) -> None:
        if (journal := self.router.journal) is not None:
            journal.sent(self.agent.agent_id, to, message)

    def _noted(self, of: str, ask: Callable[[], ReplyFuture[T]]) -> ReplyFuture[T]:
        """What `ask` gives; the journal says how it ended. Where it is refused at once that says
        so: a replay has no model that could refuse it, nor others that wait."""
        journal, agent_id = self.router.journal, self.agent.agent_id
        if journal is None:
            return ask()
        number = journal.next(agent_id, of)
        try:
            future = ask()
        except Exception as error:
            journal.failed(agent_id, of, number, error, at_once=True)
            raise
        future.on_done(lambda done: journal.ended(agent_id, of, number, done))
        return future


def _check_open(agent: Agent, *, closed: bool) -> None:
    """Raise SystemStopped once the behaviour has ended (`closed`): its `agent` may have another."""
    if closed:
        raise SystemStopped(f"the behaviour of {agent.agent_id!r} has ended")


def with_choices(sampling: Sampling | None, choices: tuple[str, ...]) -> Sampling | None:
    """The sampling, and that the answer is one of these."""
    return replace(sampling or Sampling(), choices=choices) if choices else sampling


class Asks(Protocol):
    """Whose behaviour asks others: of these an `agent` has an id."""

    agent: Any
    reentrant: bool


def check_ask(asks: Asks, to: object, timeout: float | None) -> str:
    """The id of the agent `to` which `asks` turns, for `timeout` seconds. Raises InvalidInput for
    what can have no answer."""
    check_turn(None, timeout)
    name = agent_named(to)
    if name == asks.agent.agent_id and timeout is None and not asks.reentrant:
        raise InvalidInput(
            f"{name!r} handles one message at a time and would wait for its own answer "
            "for ever: use send, a timeout, or a reentrant behaviour"
        )
    return name


def check_broadcast(to: object) -> list[str] | None:
    """The ids of the agents that it goes to; None for all. Raises InvalidInput."""
    if isinstance(to, str | bytes) or not (to is None or isinstance(to, Iterable)):
        raise InvalidInput(f"broadcast sends to a list of agents, not {to!r:.80}")
    return None if to is None else [agent_named(one) for one in to]


def _check_seconds(seconds: object, least: float) -> None:
    found = number(seconds)
    if found is None or not least <= found <= sys.float_info.max:
        raise InvalidInput(f"seconds must be at least {least:g} and finite, not {seconds!r}")
