"""The supervisor: begins the behaviours of one system, ends them with their children, and passes
on what they escalate. Any thread."""

import logging
import threading
from collections.abc import Callable
from typing import Any

from kvactors.actors.agents.handle import Agent
from kvactors.actors.behaviours.behaviour import AgentBehaviour
from kvactors.actors.behaviours.behaviour_actor import BehaviourActor
from kvactors.actors.behaviours.context import Context
from kvactors.actors.behaviours.router import MessageRouter
from kvactors.actors.behaviours.runs import ChildFailed, StopBehaviour
from kvactors.actors.runtime.blocking_pool import BlockingWork
from kvactors.actors.runtime.dispatcher import Dispatcher, SystemActor, send, send_stop
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.mailbox import LanePolicy
from kvactors.actors.runtime.supervision import Supervision, Terminated
from kvactors.actors.runtime.waits import Answer, Waiter, run_as
from kvactors.core.errors import InvalidConfig, InvalidInput, SystemStopped
from kvactors.core.trace import Tracer

__all__ = ["BehaviourSupervisor"]

logger = logging.getLogger(__name__)


class BehaviourSupervisor:
    """Begins and ends behaviours.

    `spawn` is what their `spawn` calls, and may block; `pool` gives the threads that agents share;
    `now` and `after` are of the system's clock; `tracer` is told of errors; `router` knows who
    receives. `deterministic`: no thread of their own.
    """

    def __init__(
        self,
        router: MessageRouter,
        spawn: Callable[..., Agent],
        now: Callable[[], float],
        pool: Callable[[], Dispatcher],
        tracer: Tracer,
        *,
        deterministic: bool,
    ) -> None:
        self.closed = False
        self.router = router
        self.spawn = spawn
        self.now = now
        self.after = router.after
        self.tracer = tracer
        self._pool = pool
        self._deterministic = deterministic
        # Again by a thread that has it: what makes a behaviour may spawn others.
        self._lock = threading.RLock()
        # By their parents; true: begun before their parent's restart, and not named by it since.
        self._children: dict[str, dict[str, bool]] = {}
        self._own_threads: dict[str, Dispatcher] = {}
        self._blocking = BlockingWork(router.outstanding.begin_work, router.outstanding.end_work)

    def begin(
        self,
        agent: Agent,
        behaviour: AgentBehaviour | Callable[[], AgentBehaviour],
        supervision: Supervision,
        lane: LanePolicy,
        parent: str | None,
    ) -> None:
        """Give an agent a behaviour.

        `behaviour` makes it anew after every restart, if it is callable; `supervision` says how
        it goes on after an error, `lane` how many messages may wait for it, and `parent` whom it
        may escalate to. What a parent began before its own restart goes on, where it begins that
        again. Raises InvalidConfig if the agent has one, or it is another's.
        """
        agent_id = agent.agent_id
        make = (lambda: behaviour) if isinstance(behaviour, AgentBehaviour) else behaviour
        with self._lock:
            if self.closed:
                raise SystemStopped("the system is stopped")
            siblings = self._children.get(parent or "", {})
            if siblings.get(agent_id):
                siblings[agent_id] = False
                return
            if self.router.receiver(agent_id) is not None:
                raise InvalidConfig(f"agent {agent_id!r} has a behaviour already")
            context = self.context(agent)
            actor = BehaviourActor(make, context, self, supervision, parent)
            actor.actor_inbox.lane = lane
            actor.dispatcher = self._dispatcher(agent_id, own=actor.blocking)
            if parent is not None:
                self._children.setdefault(parent, {})[agent_id] = False
            self.router.add(agent, actor)
            self.router.outstanding.begin_work()
            actor.begin()

    def check_none(self, agent_id: str) -> None:
        """Raise InvalidInput if an agent has a behaviour; it may be given one at any time."""
        if self.router.receiver(agent_id) is not None:
            raise InvalidInput(
                f"agent {agent_id!r} has a behaviour, whose state would be lost: stop that first"
            )

    def set_lane(self, agent_id: str, lane: LanePolicy) -> None:
        """Let a `lane` say how many messages may wait for an agent's behaviour, if it has one."""
        if (actor := self.router.receiver(agent_id)) is not None:
            actor.actor_inbox.lane = lane

    def context(self, agent: Agent) -> Context:
        """What a behaviour of `agent` acts through."""
        return Context(agent, self.router, self)

    def stop(self, agent_id: str) -> None:
        """End a behaviour after the message that it handles."""
        actor = self.router.receiver(agent_id)
        if actor is not None:
            self._tell(actor, StopBehaviour(self.router))

    def end(self, agent_id: str) -> None:
        """End a behaviour in the middle of what it does. Nothing reaches it from now on, though a
        call that runs goes on to its end: the agent may be given another one."""
        actor = self.router.receiver(agent_id)
        if isinstance(actor, BehaviourActor):
            send_stop(actor.actor_ref)
            self.ended(actor, None)

    def ended(self, actor: BehaviourActor, cause: BaseException | None) -> None:
        """The behaviour of `actor` ended with this `cause`: its watchers are told, its children end
        too. What is ended from outside says so once more when nothing of it runs."""
        actor.context.close()
        agent, parent = actor.context.agent, actor.parent or ""
        agent_id = agent.agent_id
        with self._lock:
            if self.router.receiver(agent_id) is not actor:
                return
            watchers = self.router.remove(agent, cause)
            siblings = self._children.get(parent, {})
            siblings.pop(agent_id, None)
            if not siblings:
                self._children.pop(parent, None)
            children = list(self._children.get(agent_id, ()))
            own = self._own_threads.pop(agent_id, None)
        for child in children:
            self.stop(child)
        for watcher in watchers:
            self.router.tell(watcher, Terminated(agent_id, cause))
        if own is not None:
            own.close(0)

    def restarted(self, agent_id: str) -> None:
        """The behaviour of an agent begins anew; its children go on."""
        with self._lock:
            if children := self._children.get(agent_id):
                children.update(dict.fromkeys(children, True))

    def escalate(self, agent_id: str, parent: str | None, error: BaseException) -> None:
        """Let the `parent` fail with the `error` of its child `agent_id`; without one it is only
        logged."""
        supervisor = self.router.receiver(parent or "")
        if supervisor is None:
            logger.error("nobody supervises %r", agent_id, exc_info=error)
            return
        self._tell(supervisor, ChildFailed(error, self.router))

    def _tell(self, actor: SystemActor, message: StopBehaviour | ChildFailed) -> None:
        """Give a behaviour's actor a message that counts as outstanding work."""
        self.router.outstanding.begin_work()
        if not send(actor.actor_ref, message):
            message.reject()

    def run_blocking(self, name: str, function: Callable[[], Any]) -> ReplyFuture[Any]:
        """Call something that may block for the agent of this `name`, on a thread of its own
        kind."""
        if self._deterministic:
            return self._blocking.run(function, here=True)
        call = Answer(self.router.waits, "", None)
        waiter = Waiter(self.router.waits, name, call)
        self._blocking.run(lambda: run_as(waiter, function), here=False).on_done(call.follow)
        return call

    def close(self) -> None:
        """End every behaviour, in the middle of what it does."""
        with self._lock:
            self.closed = True
        for actor in self.router.receivers().values():
            send_stop(actor.actor_ref)
        self._blocking.close()

    def give_up_calls(self) -> None:
        """Wait for no call of `run_blocking` any more."""
        self._blocking.give_up()

    def check(self) -> None:
        """Prove that only behaviours that run have threads, children, topics and watchers."""
        with self._lock:
            running = self.router.receivers().keys()
            children = {name for names in self._children.values() for name in names}
            assert self._own_threads.keys() <= running, "a thread of an ended behaviour"
            assert children <= running, "an ended behaviour is somebody's child"
        self.router.check()

    def _dispatcher(self, agent_id: str, *, own: bool) -> Dispatcher:
        """The threads that agents share, or one of its `own`."""
        if not own:
            return self._pool()
        if self._deterministic:
            raise InvalidConfig("deterministic mode has one thread: nothing may block")
        dispatcher = Dispatcher(f"kvactors-{agent_id}", 1, blocking=True)
        self._own_threads[agent_id] = dispatcher
        return dispatcher
