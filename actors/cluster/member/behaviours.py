"""The behaviours of the agents that a node owns: begun with them, told what comes, ended with them.

What a behaviour does goes out of its node's door, though it may come in again:

    think, observe, rewind    asked of this node, as any turn of a cluster is: where the agent is no
                              longer its own, it refuses
    send, ask                 packed, and posted to whoever owns the receiver
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast
from weakref import WeakValueDictionary

from kvactors.actors.agents.handle import Agent
from kvactors.actors.behaviours.mail import Deliver
from kvactors.actors.behaviours.named import named_behaviour
from kvactors.actors.behaviours.router import MessageRouter
from kvactors.actors.cluster.agents.asking import Asking
from kvactors.actors.cluster.agents.handle import ClusterAgent
from kvactors.actors.cluster.agents.messages import (
    error_body,
    pack_message,
    send,
    unpack_message,
    value_body,
)
from kvactors.actors.cluster.agents.requests import checked_ask
from kvactors.actors.cluster.agents.spawning import spawn
from kvactors.actors.cluster.machine.link import Link
from kvactors.actors.cluster.machine.seals import Seals
from kvactors.actors.cluster.member.circles import new_ticket
from kvactors.actors.cluster.member.contexts import NodeSupervisor, OwnAgent
from kvactors.actors.cluster.protocol.interfaces import Letter
from kvactors.actors.runtime.dispatcher import send_stop
from kvactors.actors.runtime.futures import ReplyFuture
from kvactors.actors.runtime.mailbox import DEFAULT_LANE
from kvactors.actors.runtime.supervision import Supervision, Terminated
from kvactors.actors.runtime.waits import Answer
from kvactors.actors.system.system import AgentSystem
from kvactors.core.errors import MailboxFull, Undelivered

__all__ = ["NodeBehaviours"]

Answered = tuple[ReplyFuture[Any], Callable[[Any], bytes]]


class NodeBehaviours:
    """Of the agents of one node, on the threads of its `system`. `own` leads to this node alone,
    `link` to all; `seals` opens what comes, where nodes have a key. Begun, ended and told on the
    loop of the node."""

    def __init__(self, system: AgentSystem, own: Link, link: Link, seals: Seals | None) -> None:
        self._own, self._link, self._seals = own, link, seals
        self._loop = link.loop.loop
        lifecycle = system.parts.lifecycle
        self._inbox, outgoing = (
            MessageRouter(lifecycle.outstanding, _nobody, lifecycle.after, lifecycle.waits)
            for _ in range(2)
        )
        outgoing.elsewhere = self._send
        self._supervisor = NodeSupervisor(
            self._inbox,
            self._spawn,
            lifecycle.now,
            lambda: lifecycle.pool,
            lifecycle.tracer,
            deterministic=False,
        )
        self._supervisor.outgoing = outgoing
        self._supervisor.contexts = WeakValueDictionary()
        self._agents: dict[str, OwnAgent] = {}
        self._senders: WeakValueDictionary[str, ClusterAgent] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._handled: Counter[str] = Counter()
        # What agents of any node wait for here, by its ticket.
        self._owed: WeakValueDictionary[str, Answer] = WeakValueDictionary()

    async def begin(self, agent: str, name: str | None, supervision: Supervision | None) -> None:
        """Begin the behaviour of `agent` of this `name`, under this `supervision`, unless it has
        begun. Raises InvalidConfig."""
        if name is None or agent in self._agents:
            return
        # Of an Agent it needs what both have.
        handle = OwnAgent(agent, self._own, partial(self._owes, agent))
        own, policy = cast(Agent, handle), supervision or Supervision()

        def begin() -> None:
            """It may take long: modules are imported, and somebody's `__init__` runs."""
            self._supervisor.begin(own, named_behaviour(name), policy, DEFAULT_LANE, None)

        await asyncio.to_thread(begin)
        self._agents[agent] = handle

    async def end(self, agent: str) -> None:
        """End it where it waits: it does nothing more on return."""
        self._agents.pop(agent, None)
        if (actor := self._inbox.receiver(agent)) is not None:
            ended: ReplyFuture[Terminated] = ReplyFuture()
            self._inbox.on_end(agent, ended.resolve)
            send_stop(actor.actor_ref)
            await ended

    def busy(self, agent: str, *, timers: bool = False) -> bool:
        """Whether that of `agent` has messages, or sent some that nobody has taken yet; or has
        `timers`, if those count."""
        if self._handled[agent] > 0:
            return True
        context = self._supervisor.contexts.get(agent)
        return timers and context is not None and context.timed

    def deliver(self, agent: str, letter: Letter, answered: Callable[[bytes], object]) -> None:
        """Put `letter` into the mailbox of `agent`, and have it `answered` if it asks. Text for an
        agent without a behaviour is a turn. Raises MailboxFull, Undelivered, InvalidInput."""
        body = letter.body if self._seals is None else self._seals.open_message(agent, letter.body)
        message = unpack_message(body)
        take = self._told if agent in self._agents else self._turned
        answer, said = take(agent, letter, message)
        if letter.asks:
            self._begun(agent)
            answer.on_done(lambda done: self._answer(agent, done, said, answered))
        else:
            self._owes(agent, answer)

    def waits(self, ticket: str) -> list[tuple[str, str]]:
        """See Behaviours: what the answer to the letter of this `ticket` waits for."""
        if (owed := self._owed.get(ticket)) is None:
            return []
        path = self._supervisor.outgoing.waits.path(owed)
        return [(answer.receiver, answer.ticket) for answer in path[1:] if answer.ticket]

    async def close(self) -> None:
        """End all of them, and let nothing out any more."""
        self._supervisor.close()
        for link in (self._own, self._link):
            link.posting.close()

    def _told(self, agent: str, letter: Letter, message: Any) -> Answered:
        """The answer of its behaviour to `letter`, which says `message`, and how that is packed.
        Raises Undelivered, MailboxFull: nobody was told `agent`."""
        if (actor := self._inbox.receiver(agent)) is None:
            raise Undelivered(f"the behaviour of {agent!r} has ended")
        if actor.actor_inbox.prompts >= DEFAULT_LANE.capacity:
            raise _full(agent)
        answer = self._inbox.ask(agent, message, self._sender(letter), letter.seconds)
        if answer.done and isinstance(answer.error, Undelivered):
            raise answer.error
        if letter.ticket and isinstance(answer, Answer):
            self._owed[letter.ticket] = answer
        return answer, value_body

    def _sender(self, letter: Letter) -> Agent | None:
        """A handle of who sent it: the same one while somebody has it."""
        if letter.sender is None:
            return None
        if (found := self._senders.get(letter.sender)) is None:
            found = self._senders[letter.sender] = ClusterAgent(letter.sender, self._link)
        return cast(Agent, found)

    def _turned(self, agent: str, letter: Letter, message: Any) -> Answered:
        """The same of a turn of `agent`, which has none, where the `message` of `letter` is text.
        Raises Undelivered, MailboxFull, InvalidInput."""
        if not isinstance(message, str):
            raise Undelivered(f"{agent!r} has no behaviour that takes this")
        request = checked_ask(message)
        if self._handled[agent] >= DEFAULT_LANE.capacity:
            raise _full(agent)
        answer = self._own.begin(Asking(agent, self._own).given(request))
        return answer, partial(_turn_body, request["id"])

    def _begun(self, agent: str) -> None:
        with self._lock:
            self._handled[agent] += 1

    def _owes(self, agent: str, future: ReplyFuture[Any]) -> None:
        """It is busy until that is done."""
        self._begun(agent)
        future.on_done(lambda _: self._done(agent))

    def _done(self, agent: str) -> None:
        with self._lock:
            self._handled[agent] -= 1
            if not self._handled[agent]:
                del self._handled[agent]

    def _answer(
        self,
        agent: str,
        done: ReplyFuture[Any],
        said: Callable[[Any], bytes],
        answered: Callable[[bytes], object],
    ) -> None:
        try:
            body = error_body(done.error) if done.error is not None else said(done.get())
        except Exception as error:  # Whoever asks would wait for ever.
            body = error_body(error)
        if self._seals is not None:
            body = self._seals.told(agent, body)

        def given() -> None:
            """Then it may move: what it says behind that is nobody's answer."""
            answered(body)
            self._done(agent)

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(given)

    def _send(self, deliver: Deliver) -> ReplyFuture[Any]:
        """What `deliver` says, to whoever owns its receiver."""
        handle, to, reply = deliver.sender, deliver.receiver, deliver.reply
        assert handle is not None
        sender, asks = handle.agent_id, reply is not None
        seconds, ticket = None, ""
        if reply is not None:
            seconds, ticket = reply.seconds, new_ticket()
            reply.ticket = ticket

        def lives() -> bool:
            return cast(object, self._agents.get(sender)) is handle

        left: ReplyFuture[None] = ReplyFuture()
        sent = send(
            self._link,
            to,
            deliver.message,
            sender,
            asks=asks,
            seconds=seconds,
            ticket=ticket,
            lives=lives,
            left=lambda: left.resolve(None),
        )
        if sender != to:
            # Elsewhere it would overtake what waits here.
            self._owes(sender, left)
            sent.on_done(lambda _: left.resolve(None))
        return sent

    def _spawn(self, agent_id: str, system_prompt: str | None, **options: Any) -> Any:
        """As `Cluster.spawn`. That it is a child says nothing here."""
        del options["parent"]
        return spawn(self._link, agent_id, system_prompt, **options)


def _turn_body(request: str, given: dict[str, Any]) -> bytes:
    return pack_message({"request": request, "given": given})


def _full(agent: str) -> MailboxFull:
    return MailboxFull(f"{DEFAULT_LANE.capacity} messages wait for {agent!r}, the most allowed")


def _nobody(_agent_id: str) -> None:
    """No message is for an agent of this system but by its node."""
