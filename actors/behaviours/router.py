"""The router: how messages get from one agent's behaviour to another's; topics, watchers and
dead letters.

Any thread. Every message and every pending `later` is one unit of outstanding work, from when
it is accepted until it was handled: `wait_idle` waits for these.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from kvactors.actors.agents.handle import Agent
from kvactors.actors.behaviours.following import Following
from kvactors.actors.behaviours.journal import Journal
from kvactors.actors.behaviours.mail import Deliver, Elsewhere, GiveUp, nowhere, settle_by
from kvactors.actors.runtime.dispatcher import SystemActor, offer, send
from kvactors.actors.runtime.futures import ReplyFuture, all_of, resolved
from kvactors.actors.runtime.mailbox import Mailbox
from kvactors.actors.runtime.supervision import DeadLetter, Terminated
from kvactors.actors.runtime.timer import Deadline
from kvactors.actors.runtime.waits import Answer, Waits
from kvactors.actors.turns.outstanding import Outstanding
from kvactors.core.errors import (
    BehaviourFailed,
    KvactorsError,
    MailboxFull,
    TurnTimeout,
    Undelivered,
)

__all__ = ["DEAD_LETTERS", "After", "MessageRouter", "Watcher"]

logger = logging.getLogger(__name__)

DEAD_LETTERS = "dead letters"
MOST_LETTERS = 1000

After = Callable[[float, Callable[[], object]], Deadline]
# The id of an agent, or what somebody else wants called.
Watcher = str | Callable[[Terminated], object]


class MessageRouter:
    """Who receives messages, and how they get there.

    `outstanding` counts messages until they are handled; `find` gives the agent of an id, if it was
    spawned; `after` calls back in some seconds; `waits` knows who waits for an answer. `elsewhere`,
    which a cluster sets, takes messages to agents of other systems.
    """

    def __init__(
        self,
        outstanding: Outstanding,
        find: Callable[[str], Agent | None],
        after: After,
        waits: Waits,
    ) -> None:
        self.outstanding = outstanding
        self.waits = waits
        self.journal: Journal | None = None
        self.elsewhere: Elsewhere = nowhere
        self.letters: deque[DeadLetter] = deque(maxlen=MOST_LETTERS)
        # Why what was sent to whom is lost, as the log has said it.
        self._warned: dict[str, str] = {}
        self._find = find
        self.after = after
        self._lock = threading.RLock()
        self._receivers: dict[str, SystemActor] = {}
        self._topics = Following[str]()
        self._watchers = Following[Watcher]()

    # -- receivers ---------------------------------------------------------------------

    def add(self, agent: Agent, receiver: SystemActor) -> None:
        """An agent gets messages from now on."""
        with self._lock:
            self._receivers[agent.agent_id] = receiver
            agent.ended_by = None
            self._warned.pop(agent.agent_id, None)

    def remove(self, agent: Agent, cause: BaseException | None) -> list[Watcher]:
        """It gets no more, and watches nobody; whom to tell."""
        with self._lock:
            # First: `post` looks without the lock, and finds the one or the other.
            agent.ended, agent.ended_by = True, cause
            self._receivers.pop(agent.agent_id, None)
            self._topics.leave(agent.agent_id)
            self._watchers.leave(agent.agent_id)
            return self._watchers.end(agent.agent_id)

    def receiver(self, agent_id: str) -> SystemActor | None:
        """The actor that an agent's messages go to."""
        return self._receivers.get(agent_id)

    def receivers(self) -> dict[str, SystemActor]:
        """All of them, by the id of their agents."""
        with self._lock:
            return dict(self._receivers)

    def check(self) -> None:
        """Prove that only those who receive have topics and watchers, and watch others."""
        with self._lock:
            receivers = self._receivers.keys()
            _, followers = self._topics.all()
            watched, watchers = self._watchers.all()
            agents = {one for one in watchers if isinstance(one, str)}
            assert watched <= receivers, "a watcher of an ended behaviour"
            assert agents <= receivers, "an ended behaviour watches another"
            assert followers <= receivers, "an ended behaviour follows a topic"

    # -- mail --------------------------------------------------------------------------

    def post(self, to: str, message: Any, sender: Agent | None) -> ReplyFuture[None]:
        """Send a `message` of `sender` `to` an agent; the future resolves when it is in the
        mailbox, or a dead letter."""
        return self._post(Deliver(message, sender, to, None, self))

    def _post(self, deliver: Deliver) -> ReplyFuture[None]:
        self.outstanding.begin_work()
        receiver = self._receivers.get(deliver.receiver)
        if receiver is None:
            return self._to_model(deliver)
        inbox = receiver.actor_inbox
        try:
            accepted = offer(receiver, deliver)
        except MailboxFull as error:
            return _full(deliver, error)
        except BaseException as error:
            deliver.reject(error)
            raise
        if accepted is None:
            return resolved()
        if inbox.lane.timeout is not None:
            give_up = _give_up(inbox, deliver, accepted)
            self.after(inbox.lane.timeout, give_up).until(accepted)
        return accepted

    def ask(
        self,
        to: str,
        message: Any,
        sender: Agent | None,
        timeout: float | None,
    ) -> ReplyFuture[Any]:
        """Send a `message` of `sender` `to` an agent and wait for what it answers, `timeout`
        seconds at most; then it is given up."""
        reply = Answer(self.waits, to, timeout)
        reply.message = deliver = Deliver(message, sender, to, reply, self)
        self._post(deliver)
        if timeout is not None:
            late = TurnTimeout(f"{to!r} did not answer within {timeout:g} s")
            # Weakly: what nobody will answer any more is not kept for its deadline.
            weak = weakref.ref(deliver)
            self.after(timeout, lambda: self.give_up(weak(), late)).until(reply)
        return reply

    def give_up(self, deliver: Deliver | None, error: TurnTimeout) -> None:
        """Nobody waits for the answer any more: it fails with `error`, and what was begun for it
        ends, but for calls on threads of their own (None)."""
        if deliver is None or deliver.reply is None or not deliver.reply.reject(error):
            return
        source = deliver.reply.source
        if isinstance(source, Answer) and source.let_go():
            self.give_up(source.message, error)
        receiver = self._receivers.get(deliver.receiver)
        if receiver is not None:
            send(receiver.actor_ref, GiveUp(deliver, error))

    def post_all(self, to: Iterable[str], message: Any, sender: Agent | None) -> ReplyFuture[None]:
        """Send a `message` of `sender` `to` each; the future resolves when all are in, or fails as
        the first did."""
        return all_of([self.post(agent_id, message, sender) for agent_id in to])

    def handled(self, deliver: Deliver | None, value: Any) -> None:
        """A message, or a start, ended with a value."""
        if deliver is not None and deliver.reply is not None:
            if isinstance(value, ReplyFuture):
                self.waits.follow(deliver.reply, value)
            else:
                deliver.reply.resolve(value)
        self.outstanding.end_work()

    def failed(self, deliver: Deliver | None, error: BaseException) -> None:
        """A message, or a start, ended with an error."""
        if deliver is not None and deliver.reply is not None:
            deliver.reply.reject(_for_others(error, deliver.receiver))
        self.outstanding.end_work()

    def undelivered(self, deliver: Deliver, error: BaseException | None) -> None:
        """Nobody will handle it: a dead letter; the first to an ended behaviour is warned of."""
        reason = error or Undelivered(f"{deliver.receiver!r} has no behaviour that takes this")
        if deliver.reply is not None:
            deliver.reply.reject(reason)
        sender = None if deliver.sender is None else deliver.sender.agent_id
        letter = DeadLetter(deliver.message, sender, deliver.receiver, str(reason))
        with self._lock:
            self.letters.append(letter)
            said = self._warned.get(letter.receiver)
            lost = isinstance(error, Undelivered) and said != letter.reason
            if lost:
                if len(self._warned) >= MOST_LETTERS:
                    self._warned.clear()
                self._warned[letter.receiver] = letter.reason
        level = logging.WARNING if lost else logging.DEBUG
        logger.log(level, "dead letter to %r: %s", deliver.receiver, reason)
        if not isinstance(deliver.message, DeadLetter):
            self.publish(DEAD_LETTERS, letter, None)
        self.outstanding.end_work()

    # -- topics and watchers -----------------------------------------------------------

    def subscribe(self, topic: str, agent_id: str) -> None:
        """Let an agent get what is published under a topic."""
        with self._lock:
            if agent_id in self._receivers:
                self._topics.add(topic, agent_id)

    def unsubscribe(self, topic: str, agent_id: str) -> None:
        """Let it get no more."""
        with self._lock:
            self._topics.discard(topic, agent_id)

    def publish(self, topic: str, message: Any, sender: Agent | None) -> ReplyFuture[None]:
        """Send a `message` to every subscriber of a `topic` but the `sender`."""
        with self._lock:
            receivers = self._topics.of(topic)
        own = None if sender is None else sender.agent_id
        return self.post_all((name for name in receivers if name != own), message, sender)

    def on_end(self, agent_id: str, watcher: Watcher) -> None:
        """Tell a watcher when a behaviour ends, or at once if there is none; one of an agent that
        has ended itself is told no more."""
        with self._lock:
            if agent_id in self._receivers:
                if not isinstance(watcher, str) or watcher in self._receivers:
                    self._watchers.add(agent_id, watcher)
                return
            agent = self._find(agent_id)
        self.tell(watcher, Terminated(agent_id, None if agent is None else agent.ended_by))

    def tell(self, watcher: Watcher, terminated: Terminated) -> None:
        """Post it to an agent, or call who wants that."""
        if isinstance(watcher, str):
            self.post(watcher, terminated, None)
        else:
            watcher(terminated)

    def _to_model(self, deliver: Deliver) -> ReplyFuture[None]:
        """An agent that never had a behaviour takes text as a turn; what was meant for one that
        has ended is no prompt."""
        agent = self._find(deliver.receiver)
        if agent is None and (sent := self.elsewhere(deliver)) is not None:
            return settle_by(deliver, sent)
        if agent is not None and agent.ended:
            deliver.reject(Undelivered(f"the behaviour of {deliver.receiver!r} has ended"))
            return resolved()
        if agent is None or not isinstance(deliver.message, str):
            deliver.reject()
            return resolved()
        try:
            turn = agent.ask(deliver.message)
        except MailboxFull as error:
            return _full(deliver, error)
        except KvactorsError as error:
            deliver.reject(error)
            return resolved()
        except BaseException as error:
            deliver.reject(error)
            raise
        self.handled(deliver, turn)
        return resolved()


def _full(deliver: Deliver, error: MailboxFull) -> ReplyFuture[None]:
    deliver.reject(error)
    refused: ReplyFuture[None] = ReplyFuture()
    refused.reject(error)
    return refused


def _give_up(inbox: Mailbox, deliver: Deliver, accepted: ReplyFuture[None]) -> Callable[[], None]:
    """What a timer calls to take back a message that still waits for room."""

    def fire() -> None:
        if inbox.withdraw(accepted):
            deliver.reject(accepted.error)

    return fire


def _for_others(error: BaseException, agent_id: str) -> Exception:
    """What whoever asked gets: SystemExit and the like end nobody but who raised them."""
    if isinstance(error, Exception):
        return error
    failed = BehaviourFailed(f"{agent_id!r} raised {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed
