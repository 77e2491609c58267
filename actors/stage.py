"""The stage: the behaviours of one system, their mail, topics, watchers and dead letters.

Any thread. Every message and every pending `later` is one unit of outstanding work, from when
it is accepted until it was handled: `wait_idle` waits for these.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pykka import Future

from kvactors.actors.behaviour import AgentBehaviour
from kvactors.actors.behaviour_context import Context, late_after
from kvactors.actors.blocking import BlockingWork
from kvactors.actors.dispatcher import Dispatcher, send, send_stop
from kvactors.actors.futures import ReplyFuture, all_of, resolved
from kvactors.actors.journal import Journal
from kvactors.actors.mailbox import Envelope, LanePolicy
from kvactors.actors.outstanding import Outstanding
from kvactors.actors.player import ChildFailed, Deliver, Player, StopBehaviour
from kvactors.actors.supervision import DeadLetter, Supervision, Terminated
from kvactors.core.errors import (
    BehaviourFailed,
    InvalidConfig,
    KvactorsError,
    MailboxFull,
    SystemStopped,
    Undelivered,
)

if TYPE_CHECKING:
    from kvactors.actors.handle import Agent
    from kvactors.actors.registry import Registry

__all__ = ["DEAD_LETTERS", "Stage"]

logger = logging.getLogger(__name__)

DEAD_LETTERS = "dead letters"
MOST_LETTERS = 1000


class Stage:
    """Who plays, and how messages get from one to the other."""

    def __init__(self, system: "Registry", outstanding: Outstanding) -> None:
        self.outstanding = outstanding
        self.closed = False
        self.journal: Journal | None = None
        self.tracer = system._crew.tracer
        self.letters: deque[DeadLetter] = deque(maxlen=MOST_LETTERS)
        self._system = system
        self._lock = threading.RLock()
        self._players: dict[str, Player] = {}
        self._topics: dict[str, dict[str, None]] = {}
        self._watchers: dict[str, list[Callable[[Terminated], object]]] = {}
        self._own_threads: dict[str, Dispatcher] = {}
        self._blocking = BlockingWork(outstanding.begin_work, outstanding.end_work)

    # -- life --------------------------------------------------------------------------

    def begin(
        self,
        agent: "Agent",
        behaviour: AgentBehaviour | Callable[[], AgentBehaviour],
        supervision: Supervision,
        lane: LanePolicy,
        parent: str | None,
    ) -> None:
        """Give an agent a behaviour. Raises InvalidConfig if it has one, or it is another's."""
        agent_id = agent.agent_id
        make = (lambda: behaviour) if isinstance(behaviour, AgentBehaviour) else behaviour
        with self._lock:
            self._require_open()
            if agent_id in self._players:
                raise InvalidConfig(f"agent {agent_id!r} has a behaviour already")
            context = Context(agent, self)
            pool = self._system._crew.pool
            player = Player(agent, make, context, self, pool, supervision, parent)
            player.actor_inbox.lane = lane
            if player.blocking:
                if self._system._crew.seed is not None:
                    raise InvalidConfig("deterministic mode has one thread: nothing may block")
                player.dispatcher = Dispatcher(f"kvactors-{agent_id}", 1, blocking=True)
                self._own_threads[agent_id] = player.dispatcher
            self._players[agent_id] = player
            agent._ended_by = None
        self.outstanding.begin_work()
        player.begin()

    def spawn(self, agent_id: str, system_prompt: str | None, **options: Any) -> "Agent":
        """A new agent of the system; may block."""
        return self._system.spawn(agent_id, system_prompt, **options)

    def stop(self, agent_id: str) -> None:
        """End a behaviour after the message that it handles."""
        player = self._players.get(agent_id)
        if player is not None:
            send(player.actor_ref, StopBehaviour())

    def ended(self, player: Player, cause: BaseException | None) -> None:
        """A behaviour ended: its watchers are told, its children end too."""
        agent_id = player.agent.agent_id
        with self._lock:
            self._players.pop(agent_id, None)
            player.agent._ended_by = cause
            watchers = self._watchers.pop(agent_id, [])
            for subscribers in self._topics.values():
                subscribers.pop(agent_id, None)
            children = [p for p in self._players.values() if p.parent == agent_id]
            own = self._own_threads.pop(agent_id, None)
        for child in children:
            self.stop(child.agent.agent_id)
        for tell in watchers:
            tell(Terminated(agent_id, cause))
        if own is not None:
            own.close(0)

    def escalate(self, player: Player, error: BaseException) -> None:
        """Let the parent fail with a child's error; without one it is only logged."""
        parent = self._players.get(player.parent or "")
        if parent is None:
            logger.error("nobody supervises %r", player.agent.agent_id, exc_info=error)
            return
        self.outstanding.begin_work()
        failed = ChildFailed(error, self)
        if not send(parent.actor_ref, failed):
            failed.reject()

    def close(self) -> None:
        """End every behaviour, in the middle of what it does."""
        with self._lock:
            self.closed = True
            players = list(self._players.values())
        for player in players:
            send_stop(player.actor_ref)
        self._blocking.close()

    def plays(self, agent_id: str) -> bool:
        """Whether an agent has a behaviour now."""
        return agent_id in self._players

    def others(self, agent_id: str) -> list[str]:
        """Every other agent that has a behaviour."""
        with self._lock:
            return sorted(self._players.keys() - {agent_id})

    def check(self) -> None:
        """Prove that only behaviours that play have threads, topics and watchers."""
        with self._lock:
            playing = self._players.keys()
            followers = {name for topic in self._topics.values() for name in topic}
            assert self._own_threads.keys() <= playing, "a thread of an ended behaviour"
            assert self._watchers.keys() <= playing, "a watcher of an ended behaviour"
            assert followers <= playing, "an ended behaviour follows a topic"

    # -- mail --------------------------------------------------------------------------

    def post(
        self,
        to: str,
        message: Any,
        sender: "Agent | None",
        reply: ReplyFuture[Any] | None = None,
    ) -> ReplyFuture[None]:
        """Send; the future resolves when it is in the mailbox, or a dead letter."""
        deliver = Deliver(message, sender, to, reply, self)
        self.outstanding.begin_work()
        player = self._players.get(to)
        if player is None:
            return self._to_model(deliver)
        try:
            accepted = player.actor_inbox.offer(Envelope(deliver))
        except MailboxFull as error:
            return self._full(deliver, error)
        if accepted is None:
            return resolved()
        self._give_up_after(player, deliver, accepted)
        return accepted

    def ask(
        self, to: str, message: Any, sender: "Agent | None", timeout: float | None
    ) -> ReplyFuture[Any]:
        """Send and wait for what the receiver answers."""
        reply: ReplyFuture[Any] = ReplyFuture()
        self.post(to, message, sender, reply)
        if timeout is not None:
            self.after(timeout, late_after(reply, to, timeout))
        return reply

    def post_all(
        self, to: Iterable[str], message: Any, sender: "Agent | None"
    ) -> ReplyFuture[None]:
        """Send to each; the future resolves when all are in, or fails as the first did."""
        return all_of([self.post(agent_id, message, sender) for agent_id in to])

    def handled(self, deliver: Deliver | None, value: Any) -> None:
        """A message, or a start, ended with a value."""
        if deliver is not None and deliver.reply is not None:
            if isinstance(value, Future) and not isinstance(value, ReplyFuture):
                # Of somebody else's actor: only a thread can wait for it.
                value = self.run_blocking(value.get)
            if isinstance(value, ReplyFuture):
                value.on_done(deliver.reply.follow)
            else:
                deliver.reply.resolve(value)
        self.outstanding.end_work()

    def failed(self, deliver: Deliver | None, error: BaseException) -> None:
        """A message, or a start, ended with an error."""
        if deliver is not None and deliver.reply is not None:
            deliver.reply.reject(_for_others(error, deliver.receiver))
        self.outstanding.end_work()

    def note(self, deliver: Deliver) -> None:
        """A message begins to be handled."""
        if self.journal is not None:
            sender = None if deliver.sender is None else deliver.sender.agent_id
            self.journal.message(deliver.receiver, sender, deliver.message)

    def undelivered(self, deliver: Deliver, error: BaseException | None) -> None:
        """A message that nobody will handle becomes a dead letter."""
        reason = error or Undelivered(f"{deliver.receiver!r} has no behaviour that takes this")
        if deliver.reply is not None:
            deliver.reply.reject(reason)
        sender = None if deliver.sender is None else deliver.sender.agent_id
        letter = DeadLetter(deliver.message, sender, deliver.receiver, str(reason))
        with self._lock:
            self.letters.append(letter)
        logger.debug("dead letter to %r: %s", deliver.receiver, reason)
        if not isinstance(deliver.message, DeadLetter):
            self.publish(DEAD_LETTERS, letter, None)
        self.outstanding.end_work()

    # -- topics and watchers -----------------------------------------------------------

    def subscribe(self, topic: str, agent_id: str) -> None:
        """Let an agent get what is published under a topic."""
        with self._lock:
            if agent_id in self._players:
                self._topics.setdefault(topic, {})[agent_id] = None

    def unsubscribe(self, topic: str, agent_id: str) -> None:
        """Let it get no more."""
        with self._lock:
            self._topics.get(topic, {}).pop(agent_id, None)

    def publish(self, topic: str, message: Any, sender: "Agent | None") -> ReplyFuture[None]:
        """Send to every subscriber but the sender."""
        with self._lock:
            receivers = list(self._topics.get(topic, ()))
        own = None if sender is None else sender.agent_id
        return self.post_all((name for name in receivers if name != own), message, sender)

    def watch(self, agent_id: str, watcher: str) -> None:
        """Post Terminated to a watcher when a behaviour ends, or at once if there is none."""

        def tell(terminated: Terminated) -> None:
            self.post(watcher, terminated, None)

        self.on_end(agent_id, tell)

    def on_end(self, agent_id: str, tell: Callable[[Terminated], object]) -> None:
        """Call when a behaviour ends, or at once if there is none."""
        with self._lock:
            if agent_id in self._players:
                self._watchers.setdefault(agent_id, []).append(tell)
                return
            agent = self._system.find(agent_id)
        tell(Terminated(agent_id, None if agent is None else agent._ended_by))

    # -- time and other threads --------------------------------------------------------

    def now(self) -> float:
        """Seconds of the system's clock."""
        return self._system._crew.timer.now()

    def after(self, seconds: float, callback: Callable[[], object]) -> None:
        """Call back, on the timer's thread."""
        self._system._crew.timer.after(seconds, callback)

    def run_blocking(self, function: Callable[[], Any]) -> ReplyFuture[Any]:
        """Call something that may block, on a thread of its own kind."""
        return self._blocking.run(function, here=self._system._crew.seed is not None)

    # ----------------------------------------------------------------------------------

    def _to_model(self, deliver: Deliver) -> ReplyFuture[None]:
        """An agent without a behaviour takes text as a turn."""
        agent = self._system.find(deliver.receiver)
        if agent is None or not isinstance(deliver.message, str):
            deliver.reject()
            return resolved()
        try:
            turn = agent.ask(deliver.message)
        except MailboxFull as error:
            return self._full(deliver, error)
        except KvactorsError as error:
            deliver.reject(error)
            return resolved()
        self.handled(deliver, turn)
        return resolved()

    def _full(self, deliver: Deliver, error: MailboxFull) -> ReplyFuture[None]:
        deliver.reject(error)
        refused: ReplyFuture[None] = ReplyFuture()
        refused.reject(error)
        return refused

    def _give_up_after(self, player: Player, deliver: Deliver, accepted: ReplyFuture[None]) -> None:
        inbox, timeout = player.actor_inbox, player.actor_inbox.lane.timeout

        def give_up() -> None:
            if inbox.withdraw(accepted):
                deliver.reject(accepted.error)

        if timeout is not None:
            self.after(timeout, give_up)

    def _require_open(self) -> None:
        if self.closed:
            raise SystemStopped("the system is stopped")


def _for_others(error: BaseException, agent_id: str) -> Exception:
    """What whoever asked gets: SystemExit and the like end nobody but who raised them."""
    if isinstance(error, Exception):
        return error
    failed = BehaviourFailed(f"{agent_id!r} raised {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
