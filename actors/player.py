"""The player: the actor that runs one agent's behaviour, message by message.

A coroutine that awaits a future gives its thread back; the future's end comes as a message and
resumes it. While a message is handled the prompt lane, in which messages wait, is shut.
"""

import inspect
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from kvactors.actors.behaviour import AgentBehaviour
from kvactors.actors.dispatcher import Dispatcher, SystemActor, handles, send
from kvactors.actors.futures import ReplyFuture
from kvactors.actors.supervision import Restarts, Supervision
from kvactors.core.errors import BehaviourFailed, SystemStopped
from kvactors.core.trace import Fault

if TYPE_CHECKING:
    from kvactors.actors.behaviour_context import Context
    from kvactors.actors.handle import Agent
    from kvactors.actors.stage import Stage

__all__ = ["ChildFailed", "Deliver", "Player", "StopBehaviour"]

logger = logging.getLogger(__name__)

MakeBehaviour = Callable[[], AgentBehaviour]


@dataclass(frozen=True, slots=True, eq=False)
class Deliver:
    """To a player: one message for its behaviour. Goes into the bounded lane."""

    message: Any
    """What was sent."""
    sender: "Agent | None"
    """By whom; None: from outside."""
    receiver: str
    """Id of the agent it is for."""
    reply: ReplyFuture[Any] | None
    """Who waits for an answer, if anybody."""
    stage: "Stage"
    """Where it ends if it is not handled."""
    in_prompt_lane: Literal[True] = True
    """Sorts it into the lane that a running message shuts."""

    def reject(self, error: BaseException | None = None) -> None:
        """It will not be handled."""
        self.stage.undelivered(self, error)


@dataclass(slots=True, eq=False)
class Run:
    """A message that is being handled, one unit of outstanding work. Without a message: the
    behaviour's own start, and the pause before it starts again."""

    deliver: Deliver | None
    work: "Coroutine[Any, Any, Any] | None" = None
    turns_before: int = 0


@dataclass(frozen=True, slots=True)
class Resume:
    """To a player: what a run awaited is there."""

    run: Run


@dataclass(frozen=True, slots=True)
class Restart:
    """To a player: the pause after a failure is over."""

    run: Run
    rewind: bool


@dataclass(frozen=True, slots=True)
class ChildFailed:
    """To a player: a child's behaviour escalated its error."""

    error: BaseException
    stage: "Stage"

    def reject(self, _error: BaseException | None = None) -> None:
        """The parent ended first."""
        self.stage.failed(None, self.error)


@dataclass(frozen=True, slots=True)
class StopBehaviour:
    """To a player: end once the message that is handled is."""


class Player(SystemActor):
    """Runs a behaviour under its supervision. `parent` is the id of the agent that spawned it."""

    def __init__(
        self,
        agent: "Agent",
        make: MakeBehaviour,
        context: "Context",
        stage: "Stage",
        dispatcher: Dispatcher,
        supervision: Supervision,
        parent: str | None,
    ) -> None:
        super().__init__()
        self.dispatcher = dispatcher
        self.agent = agent
        self.parent = parent
        self._make = make
        self._context = context
        self._stage = stage
        self._policy = supervision
        self._restarts = Restarts(supervision)
        self._runs: dict[Run, None] = {}
        self._stopping = False
        self._cause: BaseException | None = None
        self._behaviour = make()
        self._behaviour.bind(context)

    @property
    def blocking(self) -> bool:
        """Whether the behaviour wants a thread of its own."""
        return self._behaviour.blocking

    def on_start(self) -> None:
        """Let the behaviour start."""
        self._begin(Run(None), self._behaviour.on_start)

    def on_stop(self) -> None:
        """Nothing of it runs any more."""
        self._drop_runs(SystemStopped(f"the behaviour of {self.agent.agent_id!r} was stopped"))
        self._context.close()
        self._stage.ended(self, self._cause)

    def on_failure(self, _kind: Any, error: Any, _traceback: Any) -> None:
        """A defect in this actor: whoever waits is told."""
        self._cause = error
        self.on_stop()

    # -- one message -------------------------------------------------------------------

    @handles(Deliver)
    def _deliver(self, message: Deliver) -> None:
        self._stage.note(message)
        self._begin(
            Run(message), lambda: self._behaviour.on_message(message.message, message.sender)
        )

    @handles(ChildFailed)
    def _child_failed(self, message: ChildFailed) -> None:
        self._fail(Run(None), message.error)

    @handles(StopBehaviour)
    def _stop_when_idle(self, _message: StopBehaviour) -> None:
        self._stopping = True
        self.actor_inbox.open_to_prompts = False
        if not self._runs:
            self._stop()

    def _begin(self, run: Run, call: Callable[[], Any]) -> None:
        self._runs[run] = None
        run.turns_before = self._context.turns
        if run.deliver is None or not self._behaviour.reentrant:
            self.actor_inbox.open_to_prompts = False
        try:
            outcome = call()
        except BaseException as error:
            self._fail(run, error)
            return
        if inspect.iscoroutine(outcome):
            run.work = outcome
            self._advance(run)
        else:
            self._end(run, outcome)

    def _advance(self, run: Run) -> None:
        """Run until it awaits a future that is not done, or ends."""
        assert run.work is not None
        try:
            awaited = run.work.send(None)
            while not isinstance(awaited, ReplyFuture):
                awaited = run.work.throw(
                    TypeError(
                        "a behaviour awaits the futures of its own methods, of agents and of "
                        "run_blocking(), nothing of asyncio"
                    )
                )
        except StopIteration as stop:
            self._end(run, stop.value)
        except BaseException as error:
            self._fail(run, error)
        else:
            awaited.on_done(lambda _: send(self.actor_ref, Resume(run)))

    @handles(Resume)
    def _resume(self, message: Resume) -> None:
        if message.run in self._runs:
            self._advance(message.run)

    def _end(self, run: Run, value: Any) -> None:
        self._runs.pop(run, None)
        self.actor_inbox.open_to_prompts = not self._stopping
        self._stage.handled(run.deliver, value)
        if self._stopping and not self._runs:
            self._stop()

    def _fail(self, run: Run, error: BaseException) -> None:
        """A message failed: its asker is told, and the policy says how to go on."""
        self._runs.pop(run, None)
        if not self._stage.closed:
            logger.error("the behaviour of %r raised", self.agent.agent_id, exc_info=error)
            if self._stage.tracer.on:
                name, kind = self.agent.agent_id, type(error).__name__
                self._stage.tracer.tell(Fault(perf_counter(), "behaviour", name, kind))
            self._supervise(run, error)
        self._stage.failed(run.deliver, error)

    def _supervise(self, run: Run, error: BaseException) -> None:
        wait = self._restarts.next(self._stage.now())
        if self._policy.on_error in ("stop", "escalate") or wait is None or self._stopping:
            self._cause = error
            if self._policy.on_error == "escalate":
                self._stage.escalate(self, error)
            self._stop()
            return
        lost = BehaviourFailed(f"the behaviour of {self.agent.agent_id!r} was restarted")
        lost.__cause__ = error
        self._drop_runs(lost)
        self.actor_inbox.open_to_prompts = False
        took_turn = self._context.turns > run.turns_before
        again = Run(None)
        self._runs[again] = None
        self._stage.outstanding.begin_work()
        restart = Restart(again, self._policy.on_error == "rewind" and took_turn)
        self._stage.after(wait, lambda: send(self.actor_ref, restart))

    def _drop_runs(self, error: BaseException) -> None:
        runs, self._runs = self._runs, {}
        for run in runs:
            if run.work is not None:
                self._guarded(run.work.close)
            self._stage.failed(run.deliver, error)

    @handles(Restart)
    def _restart(self, message: Restart) -> None:
        if message.run not in self._runs:
            return
        if message.rewind:
            again = Restart(message.run, False)
            self.agent.rewind().on_done(lambda _: send(self.actor_ref, again))
            return
        self._behaviour = self._make()
        self._behaviour.bind(self._context)
        self._begin(message.run, self._behaviour.on_start)
