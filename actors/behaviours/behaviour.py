"""AgentBehaviour: what an agent does with the messages that other agents send it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from kvactors.actors.agents.handle import Agent
from kvactors.actors.behaviours.context import Context, Scheduled
from kvactors.actors.runtime.futures import ReplyFuture, resolved
from kvactors.actors.turns.reply import Reply, Rewound
from kvactors.core.errors import InvalidConfig, InvalidInput, SystemStopped
from kvactors.core.schedule.sampling import Sampling

__all__ = ["AgentBehaviour"]


class AgentBehaviour:
    """Subclass it, write `on_message`, and pass it to `AgentSystem.spawn(behaviour=...)`.

    `on_message` is an `async def` or a plain function. It handles one message at a time, while
    further ones wait, unless `reentrant` is true. What it returns answers whoever asked.
    Messages are any immutable value; they arrive at most once, and in order from each sender.

    Every method below does its work at once and returns a future: `await` it in an `async def`
    (the thread is free meanwhile), or let it be; only `later` and `every` return what cancels
    them. A plain `on_message` runs on threads that agents share and cannot wait, unless
    `blocking` is true: it then has a thread of its own, where `.get()` works. An `async def`
    awaits these futures and nothing of asyncio.

    An exception that `on_message` raises is answered to whoever asked; how the behaviour goes
    on then is its agent's `Supervision`.
    """

    reentrant: ClassVar[bool] = False
    blocking: ClassVar[bool] = False

    _context: Context | None = None

    # -- to be written -----------------------------------------------------------------

    def on_message(self, message: Any, sender: Any) -> Any:
        """Handle one message. `sender` is an Agent, or None if it comes from outside of them."""
        raise NotImplementedError(f"{type(self).__name__} handles no messages")

    def on_start(self) -> Any:
        """Called before the first message, and again after a restart. May be `async`."""

    # -- itself ------------------------------------------------------------------------

    @property
    def agent(self) -> Agent:
        """The agent whose behaviour this is."""
        return _bound(self).agent

    @property
    def agent_id(self) -> str:
        """The agent's id."""
        return _bound(self).agent.agent_id

    def think(
        self,
        prompt: str | Sequence[int] | None = None,
        *,
        choices: Iterable[str] = (),
        sampling: Sampling | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> ReplyFuture[Reply]:
        """A turn of the agent's own model and memory; `prompt`, `sampling`, `timeout` and further
        options as `Agent.ask` has them.

        With `choices` the reply is one of these texts, and `reply.scores` has the total
        log-probability of each.
        """
        if not isinstance(choices, Iterable) or isinstance(choices, str | set | frozenset):
            raise InvalidInput(f"choices must be a list of texts, not {choices!r:.80}")
        return _bound(self).think(prompt, tuple(choices), sampling, timeout, options)

    def observe(self, text: str, role: str = "user") -> ReplyFuture[Reply]:
        """Remember something without answering; as `Agent.observe`."""
        return _bound(self).observe(text, role)

    def rewind(
        self, turns: int | None = None, *, to_token: int | None = None
    ) -> ReplyFuture[Rewound]:
        """Forget the end of what is remembered; as `Agent.rewind`."""
        return _bound(self).rewind(turns, to_token)

    # -- others ------------------------------------------------------------------------

    def send(self, to: str | Agent, message: Any) -> ReplyFuture[None]:
        """Send a message; an agent that never had a behaviour takes text as a turn.

        The future resolves when it is in the receiver's mailbox; where that is full it waits,
        or fails with MailboxFull, as its LanePolicy says. A message to nobody is a dead letter.
        """
        return _bound(self).send(to, message)

    def ask(
        self, to: str | Agent, message: Any, *, timeout: float | None = None
    ) -> ReplyFuture[Any]:
        """Send a `message` `to` an agent; the future is what the receiver's `on_message` returns or
        raises (its Reply, for an agent that never had a behaviour). Fails with Undelivered,
        MailboxFull, and with TurnTimeout after `timeout` seconds: what it has begun by then ends.
        Where agents would wait for each other for ever, awaiting it raises AskCycle; asking
        oneself without a timeout is InvalidInput, unless `reentrant`."""
        return _bound(self).ask(to, message, timeout)

    def broadcast(self, message: Any, to: Iterable[str | Agent] | None = None) -> ReplyFuture[None]:
        """Send to several agents, or to every other one that has a behaviour."""
        return _bound(self).broadcast(message, to)

    def subscribe(self, topic: str) -> ReplyFuture[None]:
        """Get every message that is published under a topic from now on."""
        _bound(self).subscribe(topic)
        return resolved()

    def unsubscribe(self, topic: str) -> ReplyFuture[None]:
        """Get no more of them."""
        _bound(self).unsubscribe(topic)
        return resolved()

    def publish(self, topic: str, message: Any) -> ReplyFuture[None]:
        """Send to every subscriber of a topic but oneself."""
        return _bound(self).publish(topic, message)

    def watch(self, agent: str | Agent) -> ReplyFuture[None]:
        """Get a Terminated message when that agent's behaviour ends; one, though it be said again
        (in `on_start`, after a restart). If none runs, at once, each time it is said."""
        _bound(self).watch(agent)
        return resolved()

    def spawn(self, agent_id: str, system_prompt: str | None = None, **options: Any) -> Any:
        """A future of a new agent, this one's child; takes what `AgentSystem.spawn` takes, but for
        another `parent`. A child with a behaviour ends when its parent's does."""
        return _bound(self).spawn(agent_id, system_prompt, options)

    def stop(self, agent: str | Agent | None = None) -> ReplyFuture[None]:
        """End a behaviour, by default this one once `on_message` has returned. The agent and
        its memory stay. The future does not wait for that end: `watch` tells of it."""
        _bound(self).stop(agent)
        return resolved()

    # -- time --------------------------------------------------------------------------

    def later(self, seconds: float, message: Any) -> Scheduled:
        """Send oneself a message in some seconds; `.cancel()` the result to take it back."""
        return _bound(self).later(seconds, message)

    def every(self, seconds: float, message: Any) -> Scheduled:
        """Send oneself a message again and again, the first in `seconds`, until this behaviour ends
        or is restarted. `wait_idle` does not wait for these."""
        return _bound(self).every(seconds, message)

    def run_blocking(self, function: Callable[..., Any], *args: Any) -> ReplyFuture[Any]:
        """Call something that blocks (a file, a socket) on another thread; a future of what it
        returns or raises."""
        return _bound(self).run_blocking(function, *args)

    # -- for the system ----------------------------------------------------------------

    def bind(self, context: Context) -> None:
        """Give it to an agent. Called by the system; raises InvalidConfig if it has one."""
        if self._context is not None and self._context is not context:
            raise InvalidConfig(
                f"this {type(self).__name__} is the behaviour of {self.agent_id!r} already: "
                "every agent needs one of its own"
            )
        self._context = context
        context.reentrant = self.reentrant


def _bound(behaviour: AgentBehaviour) -> Context:
    if behaviour._context is None:
        raise SystemStopped("a behaviour acts only while its agent runs")
    return behaviour._context
